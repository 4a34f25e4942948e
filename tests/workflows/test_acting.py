"""The workflows themselves, run by act on a tiny engine against a local forge: real jobs, gates and pull request."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from metainfer.forge.local import LocalForge
from metainfer.forge.protocol import Identity
from metainfer.forge.setup import create_local_forge
from tests.ci.repositories import OWNER, ROOT, commit, git, make_repository
from tests.forge.engines import commit_on
from tests.workflows.acting import REPOSITORY, Outcome, Runner

pytestmark = [pytest.mark.github, pytest.mark.slow]

ENGINE = "tiny-qwen3"
START = "0" * 40
JOBS = ["generate/plan", f"{ENGINE}/engine/generate", "validate/validate/gates and benchmark",
        "publish/publish/pull request"]  # fmt: skip


@dataclass
class Place:
    """A forge, a work tree to push from, and a runner."""

    work: Path
    forge: LocalForge
    runner: Runner

    def push(self, message: str) -> tuple[str, str]:
        """Commit what changed and push it to main; the commits before and after."""
        before = self.forge.base_sha()
        commit(self.work, message)
        git(self.work, "push", "--quiet", str(self.forge.repo.git_dir), "HEAD:main")
        return before, self.forge.base_sha()

    def generate(self, before: str, after: str) -> Outcome:
        payload = {"before": before, "after": after, "ref": "refs/heads/main"}
        return self.runner.run("generate.yml", "push", payload, sha=after)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("acting")
    work = make_repository(folder / "work", (ENGINE,))
    create_local_forge(work, folder / "forge.git", OWNER)
    git(work, "pull", "--quiet", str(folder / "forge.git"), "main")
    git(work, "config", "--local", "user.email", OWNER)
    runner = Runner(folder, folder / "forge.git", {"METAINFER_FORGE": str(folder / "forge.git")})
    return Place(work, LocalForge(folder / "forge.git"), runner)


@pytest.fixture(scope="module")
def first(place: Place) -> Outcome:
    """The first push: one spec that works, and one that no machine can serve."""
    text = (ROOT / "specs/tiny-qwen3.yaml").read_text().replace("name: tiny-qwen3", "name: too-long")
    text = text.replace("max_model_len: 512", "max_model_len: 100000")
    (place.work / "specs/too-long.yaml").write_text(text)
    _, after = place.push("Two specs")
    return place.generate(START, after)


def test_a_push_becomes_one_pull_request_through_four_jobs(place: Place, first: Outcome) -> None:
    assert {name: first.result(name) for name in JOBS} == dict.fromkeys(JOBS, "success"), first.text[-4000:]
    [pull] = place.forge.list("all")
    assert (pull.number, pull.engine, pull.state) == (1, ENGINE, "open")
    evidence = json.loads(place.forge.read_file(pull.head, f"engines/{ENGINE}/evidence.json") or b"{}")
    assert [report["verdict"] for report in evidence["gates"]] == ["passed"] * 5
    assert evidence["bench"]["subjects"][0]["figures"]


def test_an_engine_that_fails_stops_no_other(place: Place, first: Outcome) -> None:
    assert first.code == 1
    assert first.result("too-long/engine/generate") == "failure"
    assert "100000" in first.said("too-long/engine/generate")
    assert [pull.engine for pull in place.forge.list("all")] == [ENGINE]


def test_nothing_of_the_callers_environment_or_tokens_reaches_the_validating_job(place: Place, first: Outcome) -> None:
    """It refuses to start where a secret is in its environment, so that it ran says that none was."""
    assert "green=true" in first.said("validate/validate/gates and benchmark")


def test_the_same_inputs_again_change_nothing(place: Place, first: Outcome) -> None:
    (place.work / "specs/too-long.yaml").unlink()
    (place.work / f"specs/{ENGINE}.yaml").open("a").write("# only words\n")
    before, after = place.push("Words")
    head = place.forge.get(1).head
    again = place.generate(before, after)
    assert again.code == 0, again.text[-4000:]
    assert "state=unchanged" in again.said(f"{ENGINE}/engine/generate")
    assert again.result(JOBS[2]) is None
    assert again.result(JOBS[3]) is None
    assert [(pull.number, pull.head) for pull in place.forge.list("all")] == [(1, head)]


def test_another_spec_updates_the_same_pull_request(place: Place, first: Outcome) -> None:
    path = place.work / f"specs/{ENGINE}.yaml"
    path.write_text(path.read_text().replace("max_concurrency: 8", "max_concurrency: 4"))
    before, after = place.push("Fewer at once")
    head = place.forge.get(1).head
    updated = place.generate(before, after)
    assert updated.code == 0, updated.text[-4000:]
    assert "status=updated" in updated.said("publish/publish/pull request")
    [pull] = place.forge.list("all")
    assert pull.number == 1
    assert pull.head != head


def test_a_persons_commit_stops_the_bot_and_it_says_so_once(place: Place, first: Outcome) -> None:
    mine = commit_on(place.forge, f"metainfer/{ENGINE}", {f"engines/{ENGINE}/README.md": b"mine\n"})
    for number in range(2):
        (place.work / f"specs/{ENGINE}.yaml").open("a").write(f"# words {number}\n")
        before, after = place.push("Words")
        stopped = place.generate(before, after)
        assert stopped.code == 0, stopped.text[-4000:]
        assert "state=blocked" in stopped.said(f"{ENGINE}/engine/generate")
        assert stopped.result(JOBS[2]) is None
    assert place.forge.repo.commit_at(f"refs/heads/metainfer/{ENGINE}") == mine
    [comment] = place.forge.get(1).comments
    assert comment.text.startswith("Stopped: the branch holds commits that the bot did not make")


def test_a_merged_engine_is_built_and_its_release_is_planned(place: Place, first: Outcome) -> None:
    """The last job offers files on GitHub, which a local forge has no place for; it tags, and says that."""
    before = place.forge.base_sha()
    pull = place.forge.get(1)
    git(place.forge.repo.git_dir, "update-ref", f"refs/heads/metainfer/{ENGINE}", pull.head)  # taken back by the person
    owner = Identity("Owner", OWNER)
    place.forge.approve(1, owner)
    after = place.forge.merge(1, owner).commit
    payload = {"before": before, "after": after, "ref": "refs/heads/main"}
    released = place.runner.run("release.yml", "push", payload, sha=after)
    assert released.result("release/plan") == "success", released.text[-4000:]
    assert released.result(f"release/build {ENGINE}") == "success", released.text[-4000:]
    assert f"{ENGINE}/v0.1.0" in place.forge.tags(f"{ENGINE}/")
    dist = sorted(path.name for path in (place.runner.artifacts / f"dist-{ENGINE}").iterdir())
    assert "SHA256SUMS" in dist
    assert any(name.endswith(".whl") for name in dist)
    assert "a local forge has tags and no releases" in released.said(f"release/release {ENGINE}")
    attested = (place.runner.artifacts / "attested").read_text()
    assert all(name in attested for name in dist)


def test_a_spec_pull_request_gets_one_comment_that_is_kept_current(place: Place, first: Outcome) -> None:
    base = place.forge.base_sha()
    git(place.work, "fetch", "--quiet", str(place.forge.repo.git_dir), "main")
    git(place.work, "checkout", "--quiet", "-B", "topic", "FETCH_HEAD")
    path = place.work / f"specs/{ENGINE}.yaml"
    path.write_text(path.read_text().replace("max_model_len: 512", "max_model_len: 100000"))
    head = commit(place.work, "Too long")
    git(place.work, "push", "--quiet", str(place.forge.repo.git_dir), "HEAD:topic")
    repository = {"full_name": REPOSITORY}
    pull = {
        "number": 1,
        "base": {"sha": base, "ref": "main"},
        "head": {"sha": head, "repo": repository, "ref": "topic"},
    }
    payload = {"number": 1, "action": "opened", "pull_request": pull, "repository": repository}
    said = len(place.forge.get(1).comments)
    for _ in range(2):
        told = place.runner.run("spec-pr.yml", "pull_request", payload, sha=head)
        assert told.result("spec-pr/specs") == "failure", told.text[-4000:]
        assert told.result("spec-pr/comment") == "success", told.text[-4000:]
        assert "::error file=specs/tiny-qwen3.yaml" in told.text
    comments = place.forge.get(1).comments[said:]
    assert len(comments) == 1
    assert "NOT READY" in comments[0].text


def test_a_strangers_pull_request_is_reported_on_and_not_commented(place: Place, first: Outcome) -> None:
    base = place.forge.base_sha()
    head = place.forge.repo.commit_at("refs/heads/topic")
    branch = {"sha": head, "repo": {"full_name": "stranger/engines"}, "ref": "topic"}
    pull = {"number": 1, "base": {"sha": base, "ref": "main"}, "head": branch, "labels": [{"name": "generate"}]}
    payload = {"number": 1, "action": "synchronize", "pull_request": pull, "repository": {"full_name": REPOSITORY}}
    said = len(place.forge.get(1).comments)
    told = place.runner.run("spec-pr.yml", "pull_request", payload, sha=str(head))
    assert told.result("spec-pr/specs") == "failure", told.text[-4000:]
    assert told.result("spec-pr/comment") is None
    assert told.result("spec-pr/ask for engines") is None
    assert len(place.forge.get(1).comments) == said


def test_no_artifact_is_left_executable(place: Place, first: Outcome) -> None:
    files = [path for path in place.runner.artifacts.rglob("*") if path.is_file()]
    assert files
    assert not any(path.stat().st_mode & 0o111 for path in files)
    shutil.rmtree(place.runner.folder / "act")
