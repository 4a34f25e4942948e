"""An engine that a model writes, through all workflows: the job that runs its code holds no key, the one with the key
runs nothing. The model is a script on the loopback, the forge a local one; everything else is real."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from metainfer.agents.budget import read_ledger
from metainfer.forge.local import LocalForge
from metainfer.forge.setup import create_local_forge
from metainfer.pipeline.replay import replay
from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS, fenced
from tests.agents.scripted_endpoint import Act, ScriptedEndpoint, answers, fails, scripted
from tests.ci.repositories import ENGINE, OWNER, SPEC, commit, git, make_repository
from tests.workflows.acting import Outcome, Runner

pytestmark = [pytest.mark.github, pytest.mark.slow]

KEY = "a-key-of-the-tests"
NORM = "family/rmsnorm"
START = "0" * 40


def repaired(body: dict[str, Any]) -> str:
    return fenced(RMSNORM if len(body["messages"]) > 2 else RMSNORM_WITHOUT_EPS)


@dataclass
class Place:
    """A forge, a work tree to push from, and what is needed to run workflows."""

    folder: Path
    work: Path
    forge: LocalForge

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def push(self, **generation: Any) -> tuple[str, str]:
        """Push a spec that lets a model write; the commits before and after."""
        before = self.forge.base_sha()
        spec = yaml.safe_load((self.work / SPEC).read_text())
        spec["generation"] = {"backend": "agents", "model": "scripted", "reference": "none", "roles": [], "rounds": 1,
                              "contracts": [NORM], **generation}  # fmt: skip
        (self.work / SPEC).write_text(yaml.safe_dump(spec))
        commit(self.work, "Let a model write")
        git(self.work, "push", "--quiet", str(self.forge.repo.git_dir), "HEAD:main")
        return before, self.forge.base_sha()

    def generate(self, commits: tuple[str, str], act: Act, *, attempt: int = 1) -> tuple[Outcome, ScriptedEndpoint]:
        """What the workflows come to with a model that does what `act` says. Another attempt finds what was left."""
        with scripted(act) as endpoint:
            variables = {"METAINFER_FORGE": str(self.folder / "forge.git"), "METAINFER_BASE_URL": endpoint.base_url}
            environment = {"GITHUB_RUN_ATTEMPT": str(attempt)}
            runner = Runner(self.folder, self.folder / "forge.git", variables, environment, limit_s=1500)
            payload = {"before": commits[0], "after": commits[1], "ref": "refs/heads/main"}
            secrets = (f"METAINFER_API_KEY={KEY}",)
            return runner.run("generate.yml", "push", payload, sha=commits[1], secrets=secrets), endpoint

    def texts(self) -> dict[str, bytes]:
        """All that jobs left for each other."""
        files = (path for path in self.artifacts.rglob("*") if path.is_file())
        return {path.relative_to(self.artifacts).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("rounds")
    work = make_repository(folder / "work", (ENGINE,))
    create_local_forge(work, folder / "forge.git", OWNER)
    git(work, "pull", "--quiet", str(folder / "forge.git"), "main")
    return Place(folder, work, LocalForge(folder / "forge.git"))


@pytest.fixture(scope="module")
def first(place: Place) -> tuple[Outcome, ScriptedEndpoint]:
    """A push whose engine needs one repair."""
    _, after = place.push()
    return place.generate((START, after), answers(repaired))


def test_what_a_model_wrote_and_mended_becomes_a_pull_request(
    place: Place, first: tuple[Outcome, ScriptedEndpoint]
) -> None:
    outcome, endpoint = first
    assert outcome.code == 0, outcome.text[-6000:]
    [pull] = place.forge.list("all")
    assert (pull.engine, pull.state) == (ENGINE, "open")
    manifest = json.loads(place.forge.read_file(pull.head, f"engines/{ENGINE}/manifest.json") or b"{}")
    assert (manifest["agent"]["settings"]["model"], manifest["agent"]["fell_back"]) == ("scripted", [])
    unit = place.forge.read_file(pull.head, f"engines/{ENGINE}/units/family.rmsnorm.py")
    assert unit == RMSNORM.encode()
    evidence = json.loads(place.forge.read_file(pull.head, f"engines/{ENGINE}/evidence.json") or b"{}")
    assert [report["verdict"] for report in evidence["gates"]] == ["passed"] * 5
    assert "written by a language model" in pull.body
    assert len(endpoint.requests) == 2


def test_the_rounds_end_where_nothing_is_left_to_ask(first: tuple[Outcome, ScriptedEndpoint]) -> None:
    outcome, _ = first
    assert outcome.endings("advance") == ["success"] * 3, outcome.results
    assert outcome.endings("ask") == ["success"] * 2, outcome.results


def test_the_key_reaches_the_endpoint_and_nothing_that_is_left_behind(
    place: Place, first: tuple[Outcome, ScriptedEndpoint]
) -> None:
    """`ci advance` refuses to start where a secret is in its environment, so that it ran says that none was."""
    outcome, endpoint = first
    assert {headers["authorization"] for headers in endpoint.headers} == {f"bearer {KEY}"}
    texts = place.texts()
    assert {"replies-tiny-qwen3-1/ledger.jsonl", "round-tiny-qwen3-2/requests.jsonl"} <= texts.keys()
    assert [path for path, text in texts.items() if KEY.encode() in text] == []
    assert KEY not in outcome.text


def test_the_run_is_kept_and_can_be_replayed(place: Place, first: tuple[Outcome, ScriptedEndpoint]) -> None:
    [run] = (place.artifacts / f"run-{ENGINE}").iterdir()
    assert replay(run, ENGINE, place.work / "ckb") == []
    ledger = list(read_ledger(run / "ledger.jsonl"))
    manifest = json.loads((run / ENGINE / "manifest.json").read_bytes())
    assert manifest["agent"]["tokens"] == sum({one.call: one.tokens for one in ledger}.values()) > 0


def test_the_same_inputs_again_ask_nobody(place: Place, first: tuple[Outcome, ScriptedEndpoint]) -> None:
    before = place.forge.base_sha()
    (place.work / SPEC).open("a").write("# only words\n")
    commit(place.work, "Words")
    git(place.work, "push", "--quiet", str(place.forge.repo.git_dir), "HEAD:main")
    outcome, endpoint = place.generate((before, place.forge.base_sha()), fails(500))
    assert outcome.code == 0, outcome.text[-4000:]
    assert "state=unchanged" in outcome.text
    assert endpoint.requests == []


def test_an_endpoint_that_fails_ends_the_run_and_another_attempt_pays_nothing_twice(
    place: Place, first: tuple[Outcome, ScriptedEndpoint]
) -> None:
    """With no room for a repair: the model is asked for both contracts at once, and answers for the one alone."""
    head = place.forge.get(1).head
    commits = place.push(rounds=0, contracts=[NORM, "family/rope"])
    outcome, endpoint = place.generate(commits, answers_for_the_norm())
    assert outcome.code == 1
    assert outcome.endings("ask") == ["failure"], outcome.text[-4000:]
    assert outcome.endings("gates and benchmark") == []
    assert place.forge.get(1).head == head
    [kept] = [path for path in place.texts() if path.startswith("replies-tiny-qwen3-1/kept/")]
    assert len(endpoint.requests) == 2
    outcome, endpoint = place.generate(commits, fails(401), attempt=2)
    assert outcome.code == 1
    assert len(endpoint.requests) == 1, "what was answered is not asked again"
    assert kept in place.texts()
    shutil.rmtree(place.artifacts / "replies-tiny-qwen3-1")
    outcome, endpoint = place.generate(commits, fails(401), attempt=3)
    assert outcome.endings("ask") == ["failure"]
    assert len(endpoint.requests) == 2, "where nothing was left, all is asked"


def answers_for_the_norm() -> Act:
    """Fails every question about another contract, in whatever order they come."""

    async def act(writer: Any, body: dict[str, Any]) -> None:
        wanted = "Write RMSNorm" in body["messages"][1]["content"]
        await (answers(repaired) if wanted else fails(401))(writer, body)

    return act
