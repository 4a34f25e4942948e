"""The whole loop on loopback: real workflows in act, the real forge for GitHub, a strict stub behind API and Git.

Olive owns the repository and all of its files but the knowledge, which is Kim's. Sam writes specs; Rita may only read.
Each job signs in with a token that has the rights that the job names and no other, so a job that asks for too little
fails here as it would on GitHub. The steps depend on each other in the order in which they stand.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ckb.lesson import CONTRACT
from tests.github.openapi import checked_answers
from tests.github.stub import Stub, stub_server
from tests.workflows.acting import Outcome
from tests.workflows.hub import NOBODYS, Delivery, Hub
from tests.workflows.loop import (
    BRANCH,
    ENGINE,
    SPEC,
    changed,
    check,
    make_hub,
    merge_spec,
    propose,
    refs,
    spec,
    the_pull,
)
from tests.workflows.released import Machine, commands_of, complete, greedy
from tests.workflows.rights import rights_of_jobs

pytestmark = [pytest.mark.github, pytest.mark.slow]

PLAN, GENERATE = "generate/plan", f"{ENGINE}/engine/generate"
VALIDATE, PUBLISH = "validate/validate/gates and benchmark", "publish/publish/pull request"


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    with stub_server(tmp_path_factory.mktemp("github")) as server:
        yield server
    assert server.journal.unknown == [], "the stub was asked what it does not know"
    assert checked_answers(server.journal.answers) == []


@pytest.fixture(scope="module")
def hub(stub: Stub, tmp_path_factory: pytest.TempPathFactory) -> Hub:
    return make_hub(stub, tmp_path_factory.mktemp("runner"))


def test_a_jobs_token_can_do_what_its_job_names_and_no_more(hub: Hub, spec_pull: int) -> None:
    """What makes the rest of this file mean something: a job with too few rights fails."""
    wanted = {"title": "x", "head": "spec", "base": "main"}
    for job, rights in rights_of_jobs("generate.yml").items():
        token = hub.stub.actions_token(hub.repo.full_name, **rights)
        reads = hub.call(token, "GET", "/pulls").status_code == 200
        opens = hub.call(token, "POST", "/pulls", json=wanted).status_code != 403
        assert (reads, opens) == (job in ("plan", "generate", "ask", "publish"), job == "publish"), job
    assert hub.call(NOBODYS, "GET", "").status_code == 401


# A spec is proposed


@pytest.fixture(scope="module")
def spec_pull(hub: Hub) -> int:
    return propose(hub, "spec", spec().replace(b"max_concurrency:", b"max_concurrent:"))


def test_a_spec_that_will_not_do_is_told_at_its_line_and_in_one_comment(hub: Hub, spec_pull: int) -> None:
    opened = hub.pull_request(spec_pull, "opened")
    assert opened.workflows == ["ckb-review.yml", "spec-pr.yml"]
    told = opened.run("spec-pr.yml")
    assert told.result("spec-pr/specs") == "failure", told.text[-4000:]
    assert told.result("spec-pr/comment") == "success", told.text[-4000:]
    line = spec().decode().splitlines().index("  max_concurrency: 8") + 1
    assert f"::error file={SPEC},line={line},col=3" in told.text
    [comment] = hub.comments(spec_pull)
    assert "NOT READY" in comment


def test_the_comment_is_edited_when_the_spec_is_mended(hub: Hub, spec_pull: int) -> None:
    hub.push("sam", "spec", {SPEC: spec()})
    told = hub.pull_request(spec_pull, "synchronize").run("spec-pr.yml")
    assert told.code == 0, told.text[-4000:]
    [comment] = hub.comments(spec_pull)
    assert "**1 spec(s) can be generated.**" in comment


# It is merged: the engine's pull request


@pytest.fixture(scope="module")
def merged(hub: Hub, spec_pull: int) -> Delivery:
    hub.push("sam", "spec", {SPEC: spec()})
    return merge_spec(hub, spec_pull, "synchronize")


@pytest.fixture(scope="module")
def first(merged: Delivery) -> Outcome:
    return merged.run("generate.yml")


def test_a_merged_spec_becomes_one_pull_request_of_two_commits(hub: Hub, merged: Delivery, first: Outcome) -> None:
    assert merged.workflows == ["dashboard.yml", "generate.yml"]
    assert first.results == dict.fromkeys([PLAN, GENERATE, VALIDATE, PUBLISH], "success"), first.text[-6000:]
    pull = the_pull(hub)
    assert pull["user"]["login"] == "github-actions[bot]"
    assert pull["body"].startswith("**Verdict: all 5 gates passed.**")
    assert "### Knowledge\n\nIn its own commit; it serves the next generation" in pull["body"]
    engine, knowledge = hub.as_("sam", "GET", f"/pulls/{pull['number']}/commits")
    assert engine["commit"]["message"].splitlines()[0] == f"{ENGINE}: generate the engine"
    assert {path.split("/")[0] for path in changed(hub, engine["sha"])} == {"engines"}
    assert knowledge["commit"]["message"].splitlines()[0] == f"Propose knowledge found while generating {ENGINE}"
    assert changed(hub, knowledge["sha"]) == [f"ckb/{CONTRACT}/contract.yaml"]


def test_the_same_event_again_changes_nothing(hub: Hub, merged: Delivery, first: Outcome) -> None:
    before, heard = (the_pull(hub), refs(hub)), len(hub.stub.journal.answers)
    again = merged.run("generate.yml")
    assert "state=unchanged" in again.said(GENERATE), again.text[-4000:]
    assert again.results == dict.fromkeys([PLAN, GENERATE], "success")
    assert {answer.method for answer in hub.stub.journal.answers[heard:]} == {"GET"}
    assert (the_pull(hub), refs(hub)) == before


def test_the_dashboard_is_one_issue(hub: Hub, first: Outcome) -> None:
    made = hub.scheduled().run("dashboard.yml")
    assert made.code == 0, made.text[-4000:]
    [issue] = hub.as_("rita", "GET", "/issues?labels=metainfer-dashboard&state=all")
    assert f"| `{ENGINE}` |   | not made yet |" in issue["body"]
    assert f"| #{the_pull(hub)['number']}, green |" in issue["body"]
    assert "| `generate.yml` | [" in issue["body"]


def test_a_label_on_a_spec_pull_request_asks_for_its_engines(hub: Hub, first: Outcome) -> None:
    """What starts is main's own workflow; its first job looks up who labelled, and where the engines go."""
    number = propose(hub, "ahead", spec(max_concurrency=2))
    asked = hub.labelled(number, "sam", "generate").run("spec-pr.yml")
    assert asked.results == {"spec-pr/ask for engines": "success"}, asked.text[-4000:]
    [delivery] = hub.dispatched()
    assert delivery.payload["inputs"] == {"pull": str(number)}
    planned = delivery.run("generate.yml", "plan").said(PLAN)
    assert "branch=ahead" in planned, planned[-4000:]
    assert "count=1" in planned


# The spec changes


@pytest.fixture(scope="module")
def fewer(hub: Hub, first: Outcome) -> Outcome:
    return merge_spec(hub, propose(hub, "fewer", spec(max_concurrency=4))).run("generate.yml")


def test_another_spec_updates_the_same_pull_request(hub: Hub, first: Outcome, fewer: Outcome) -> None:
    assert fewer.code == 0, fewer.text[-6000:]
    assert "status=updated" in fewer.said(PUBLISH)
    pull = the_pull(hub)
    assert "4 requests at once" in pull["body"]
    assert len(hub.as_("sam", "GET", f"/pulls/{pull['number']}/commits")) == 2
    assert hub.repo.bare.is_ancestor(hub.tip(), pull["head"]["sha"])


@pytest.fixture(scope="module")
def by_hand(hub: Hub, fewer: Outcome) -> str:
    """Sam mends a word on the bot's branch."""
    return hub.push("sam", BRANCH, {f"engines/{ENGINE}/README.md": b"mine\n"}, "Mend a word\n")


@pytest.fixture(scope="module")
def shorter(hub: Hub, by_hand: str) -> Delivery:
    return merge_spec(hub, propose(hub, "shorter", spec(max_concurrency=4, max_model_len=256)))


def test_a_persons_commit_stops_the_bot_and_it_says_so_once(hub: Hub, by_hand: str, shorter: Delivery) -> None:
    number, tip = the_pull(hub)["number"], by_hand
    for text in (b"mine again\n", b"and again\n"):
        stopped = shorter.run("generate.yml")
        assert stopped.results == dict.fromkeys([PLAN, GENERATE, PUBLISH], "success"), stopped.text[-4000:]
        assert "state=blocked" in stopped.said(GENERATE)
        assert hub.tip(BRANCH) == tip
        [comment] = hub.comments(number)
        assert comment.startswith(f"Stopped: the branch holds commits that the bot did not make (tip {by_hand[:12]})")
        assert "A comment `/metainfer regenerate` does the same." in comment
        tip = hub.push("sam", BRANCH, {f"engines/{ENGINE}/README.md": text})


def test_somebody_without_the_right_commands_nothing_and_is_told_so_once(hub: Hub, shorter: Delivery) -> None:
    number = the_pull(hub)["number"]
    for _ in range(2):
        refused = hub.commented(number, "rita", "/metainfer regenerate").run("comment.yml")
        assert refused.code == 0, refused.text[-4000:]
    assert hub.dispatched() == []
    answers = [text for text in hub.comments(number) if "only people who may write" in text]
    assert len(answers) == 1


@pytest.fixture(scope="module")
def left_behind(hub: Hub, by_hand: str, shorter: Delivery) -> str:
    """Where Sam's commits ended."""
    return hub.tip(BRANCH)


@pytest.fixture(scope="module")
def regenerated(hub: Hub, left_behind: str) -> Outcome:
    """Sam asks for it; the comment's workflow asks for generate.yml, which makes the engine."""
    asked = hub.commented(the_pull(hub)["number"], "sam", "/metainfer regenerate").run("comment.yml")
    assert asked.code == 0, asked.text[-4000:]
    [delivery] = hub.dispatched()
    assert delivery.payload["inputs"] == {"specs": ENGINE, "regenerate": "true"}
    return delivery.run("generate.yml")


def test_on_a_command_of_somebody_who_may_write_it_goes_on(hub: Hub, left_behind: str, regenerated: Outcome) -> None:
    assert regenerated.code == 0, regenerated.text[-6000:]
    pull = the_pull(hub)
    assert "256 tokens each" in pull["body"]
    assert not hub.repo.bare.is_ancestor(left_behind, pull["head"]["sha"])
    said = hub.comments(pull["number"])
    assert any(text.startswith(f"Making `{ENGINE}` again, as `@sam` asked") for text in said)
    assert any(f"on request. The branch was at {left_behind}" in text for text in said)


# Its knowledge is reviewed


def test_the_check_is_red_before_the_owner_of_the_knowledge_approved(hub: Hub, regenerated: Outcome) -> None:
    """The bot's own pull request starts nothing: the schedule finds it."""
    judged = hub.scheduled().run("ckb-review.yml")
    assert judged.code == 0, judged.text[-4000:]
    pull = the_pull(hub)
    assert check(hub, pull["head"]["sha"]) == ("pending", f"waits for @kim: ckb/{CONTRACT}/contract.yaml")
    assert {label["name"] for label in pull["labels"]} == {"ckb-change"}
    refused = hub.as_("sam", "PUT", f"/pulls/{pull['number']}/merge", {}, status=405)
    assert 'Required status check "ckb-review" is failing' in refused["message"]


@pytest.fixture(scope="module")
def approved(hub: Hub, regenerated: Outcome) -> Outcome:
    """Kim, who owns ckb/, approves this head."""
    hub.scheduled().run("ckb-review.yml")
    return hub.approved(the_pull(hub)["number"], "kim").run("ckb-review.yml")


def test_it_is_green_once_the_owner_approved_this_head(hub: Hub, approved: Outcome) -> None:
    assert approved.code == 0, approved.text[-4000:]
    pull = the_pull(hub)
    head = pull["head"]["sha"]
    assert check(hub, head) == ("success", f"approved by @kim at {head[:12]}")
    [comment] = [text for text in hub.comments(pull["number"]) if text.startswith("### Knowledge review")]
    assert comment.startswith("### Knowledge review: passed")
    refused = hub.as_("sam", "PUT", f"/pulls/{pull['number']}/merge", {}, status=405)
    assert refused["message"] == "Waiting on code owner review."  # of the engine, which is Olive's


# It is merged, released, and used


@pytest.fixture(scope="module")
def in_main(hub: Hub, approved: Outcome) -> Delivery:
    number = the_pull(hub)["number"]
    hub.as_("olive", "POST", f"/pulls/{number}/reviews", {"event": "APPROVE"})
    return hub.merged(number, "sam")


@pytest.fixture(scope="module")
def release(hub: Hub, in_main: Delivery) -> Any:
    outcome = in_main.run("release.yml")
    assert outcome.code == 0, outcome.text[-6000:]
    assert (hub.folder / "artifacts/attested").is_file()
    return hub.as_("rita", "GET", f"/releases/tags/{ENGINE}/v0.1.0")


def test_a_merged_engine_is_released_with_its_files(hub: Hub, in_main: Delivery, release: Any) -> None:
    assert in_main.workflows == ["dashboard.yml", "generate.yml", "release.yml"]
    tag = hub.repo.bare.git("cat-file", "-p", f"refs/tags/{ENGINE}/v0.1.0")
    assert f"object {in_main.sha}\ntype commit" in tag
    assert (release["draft"], release["name"]) == (False, f"{ENGINE} v0.1.0")
    assert [asset["name"] for asset in release["assets"]] == [
        "evidence.json",
        "manifest.json",
        "metainfer_engine_tiny_qwen3-0.1.0-py3-none-any.whl",
        "metainfer_engine_tiny_qwen3-0.1.0.tar.gz",
        "SHA256SUMS",
    ]


def test_the_release_again_changes_nothing(hub: Hub, in_main: Delivery, release: Any) -> None:
    before, heard = refs(hub), len(hub.stub.journal.answers)
    again = in_main.run("release.yml")
    assert again.results == {"release/plan": "success"}, again.text[-4000:]
    assert {answer.method for answer in hub.stub.journal.answers[heard:]} <= {"GET"}
    assert refs(hub) == before


def test_what_is_released_runs_by_its_notes_and_answers_as_transformers_does(
    hub: Hub, release: Any, tmp_path: Path
) -> None:
    machine = Machine.fresh(tmp_path)
    for asset in release["assets"]:
        got = hub.call(hub.stub.token("rita"), "GET", asset["url"], accept="application/octet-stream")
        (machine.folder / "dist" / asset["name"]).write_bytes(got.content)
    verify, install, make_model, take_model, serve = commands_of(release["body"])
    [sdist] = (machine.folder / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        readme = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/README.md")
        assert readme is not None
        assert {make_model, take_model, serve} <= set(commands_of(readme.read().decode()))
    machine.stock(next((machine.folder / "dist").glob("*.whl")))
    for module in ("metainfer.cli", "transformers"):
        assert f"No module named '{module.partition('.')[0]}'" in machine.run(f"python -c 'import {module}'").stderr
    model = hub.folder_of_model(make_model)
    for command in (verify, install, take_model.replace("MODEL_FOLDER", str(model))):
        done = machine.run(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    with machine.serving(serve) as url:
        for prompt in ("Hello", "def add(a, b):", "0123456789 " * 8):
            wanted = greedy(model, prompt, 24)
            for asked in (prompt, wanted.prompt):
                got = complete(url, asked, 24)
                [choice] = got["choices"]
                assert got["usage"]["completion_tokens"] == len(wanted.tokens)
                assert choice["text"] == wanted.text
                assert choice["logprobs"]["token_logprobs"] == pytest.approx(wanted.logprobs, abs=1e-4)


def test_the_dashboard_is_the_same_issue_and_shows_the_release(hub: Hub, in_main: Delivery, release: Any) -> None:
    kept = in_main.run("dashboard.yml")
    assert "done=updated" in kept.said("dashboard/dashboard"), kept.text[-4000:]
    [issue] = hub.as_("rita", "GET", "/issues?labels=metainfer-dashboard&state=all")
    assert f"| `{ENGINE}` | `v0.1.0` | green |" in issue["body"]
