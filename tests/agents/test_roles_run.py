"""A whole run in which every role takes part: what the pull request shows, what it carries, and what it may not do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metainfer.agents.transcript import read_transcript
from metainfer.forge.protocol import Identity, MergeRefusedError, PullRequest
from metainfer.forge.setup import create_local_forge, open_forge
from metainfer.pipeline.agents import AgentAccess
from metainfer.pipeline.replay import replay
from metainfer.pipeline.run import RunRequest, RunResult, run
from metainfer.progress import Silent
from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS, SWIGLU, fenced
from tests.agents.roles_at_work import Body, by_role, mistakes, objection, objections, plan, said
from tests.agents.scripted_endpoint import answers, scripted

ROOT = Path(__file__).parents[2]
REVIEWER = Identity("Reviewer", "reviewer@example.org")
NORM, MLP = "family/rmsnorm", "family/swiglu-mlp"
GENERATION = {
    "backend": "agents",
    "model": "scripted",
    "reference": "none",
    "rounds": 1,
    "contracts": [NORM, MLP],
}
SWIGLU_LINE = next(n for n, line in enumerate(SWIGLU.strip().split("\n"), 1) if "sigmoid" in line)
WHY = "Ask @maintainers | see #1 <img src=x onerror=y> `overflow` for gate = -1e4."
MISTAKE = {
    "finding": "F1",
    "trigger": "The reciprocal root is taken of the bare power, as if no row were all zeros. @owner",
    "symptom": "A row of padding turns the whole batch into NaN.",
    "fix": "Keep the guard beside the power in every place where it is used.",
}


def implementer(body: Body) -> str:
    if "Write SwiGLU" in body["messages"][1]["content"]:
        return fenced(SWIGLU)
    return fenced(RMSNORM if "<findings>" in body["messages"][-1]["content"] else RMSNORM_WITHOUT_EPS)


def reviewer(body: Body) -> str:
    if "torch.sigmoid" not in said(body):
        return objections(objection("S77", 3, "no such line"))
    return objections(objection("S1", SWIGLU_LINE, "torch.sigmoid(gate)", WHY))


SCRIPT = by_role(
    planner=lambda body: plan((MLP, 5, 0, False), (NORM, 1, 0, True), why="The small one first."),
    implementer=implementer,
    reviewer=reviewer,
    consolidator=lambda body: mistakes(MISTAKE, MISTAKE | {"fix": "Widen the tolerance."}),
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository") / "work"
    folder.mkdir()
    for name in ("ckb", "specs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "Reviewer"],
        ["config", "user.email", "reviewer@example.org"],
        ["add", "."],
        ["commit", "--quiet", "-m", "Start"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    create_local_forge(folder, folder.parent / "forge.git", "reviewer@example.org")
    return folder


@pytest.fixture(scope="module")
def result(work: Path) -> RunResult:
    with scripted(answers(SCRIPT)) as endpoint:
        request = RunRequest(
            spec_path=work / "specs" / "tiny-qwen3.yaml",
            repo_root=work,
            state=work / ".metainfer",
            cache=work.parent / "cache",
            bench=False,
            agents=AgentAccess(endpoint.base_url),
            generation=GENERATION,
        )
        return run(request, open_forge(work), Silent())


@pytest.fixture(scope="module")
def pull(work: Path, result: RunResult) -> PullRequest:
    assert result.outcome is not None
    assert result.outcome.number is not None
    return open_forge(work).get(result.outcome.number)


def kept(result: RunResult, name: str) -> Any:
    assert result.run_folder is not None
    return json.loads((result.run_folder / name).read_text())


def test_every_role_spoke_and_the_engine_is_proposed(result: RunResult) -> None:
    assert result.status == "published"
    assert result.run_folder is not None
    turns = [turn.purpose for turn in read_transcript(result.run_folder / "transcript.jsonl")]
    calls = [(purpose.role, purpose.subject, purpose.round) for purpose in turns]
    assert calls[0] == ("planner", "tiny-qwen3", 0)
    assert calls[-1] == ("consolidator", NORM, 0)
    assert sorted(calls[1:-1]) == [
        ("implementer", NORM, 0),
        ("implementer", NORM, 1),
        ("implementer", MLP, 0),
        ("implementer", MLP, 1),
        ("reviewer", NORM, 0),
        ("reviewer", MLP, 0),
    ]


def test_the_plan_is_kept_clipped_and_leaves_nothing_that_the_spec_names(result: RunResult) -> None:
    given = kept(result, "plan.json")
    assert given["planned"]
    assert [(step["contract"], step["rounds"], step["leave"]) for step in given["steps"]] == [
        (MLP, 1, False), (NORM, 1, False),
    ]  # fmt: skip
    assert result.manifest is not None
    assert {unit.contract for unit in result.manifest.units if unit.backend == "agents"} == {NORM, MLP}


def test_the_open_objection_is_in_the_manifest_and_in_the_pull_request_as_text(
    result: RunResult, pull: PullRequest
) -> None:
    assert result.manifest is not None
    assert result.manifest.agent is not None
    [open_] = result.manifest.agent.objections
    assert (open_.contract, open_.clause, open_.line) == (MLP, "S1", SWIGLU_LINE)
    assert "### Objections of the reviewer" in pull.body
    row = next(line for line in pull.body.splitlines() if line.startswith(f"| {MLP} | {SWIGLU_LINE} | S1: "))
    assert "overflow" in row
    assert "@maintainers" not in row
    assert "<img" not in row
    reviews = {outcome["contract"]: outcome["review"] for outcome in kept(result, "outcomes.json")}
    assert (reviews[NORM]["objections"], reviews[NORM]["dropped"]) == ([], 1)


def test_what_was_learnt_is_a_commit_of_its_own_that_changes_no_check(work: Path, pull: PullRequest) -> None:
    forge = open_forge(work)
    log = ["git", "--git-dir", forge.address(), "log", "--format=%s", "--name-only", "-1", pull.head]
    subject, *paths = subprocess.run(log, capture_output=True, text=True, check=True).stdout.split("\n")
    assert subject == "Propose knowledge found while generating tiny-qwen3"
    assert [path for path in paths if path] == [f"ckb/{NORM}/contract.yaml"]
    text = (forge.read_file(pull.head, f"ckb/{NORM}/contract.yaml") or b"").decode()
    assert "caught_by: check_matches_float64" in text.rpartition("reciprocal-root-taken-bare")[2]
    assert "model scripted" in text
    assert "WEAKEN" not in pull.body
    assert "@owner" not in pull.body
    assert "a new failure mode reciprocal-root-taken-bare" in pull.body
    assert "attempts 2, attempts" in pull.body.replace("\\", "")


def test_what_was_dropped_is_kept_with_the_reason(result: RunResult) -> None:
    lessons = kept(result, "lessons.json")
    assert len(lessons["proposed"]) == 1
    assert [dropped["why"] for dropped in lessons["dropped"]] == [
        "it speaks of checks or tolerances, which no failure mode changes"
    ]


def test_a_merge_needs_an_owner_of_the_knowledge_base(work: Path, pull: PullRequest) -> None:
    forge = open_forge(work)
    forge.approve(pull.number, Identity("Passer-by", "passer-by@example.org"))
    with pytest.raises(MergeRefusedError, match="ckb/"):
        forge.merge(pull.number, REVIEWER)


def test_the_transcript_still_makes_the_engine_again(work: Path, result: RunResult) -> None:
    assert result.run_folder is not None
    assert replay(result.run_folder, "tiny-qwen3", work / "ckb") == []


def show(work: Path, result: RunResult, *options: str) -> str:
    assert result.run_folder is not None
    command = [sys.executable, "-m", "metainfer", "runs", "show", result.run_folder.name, *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_run_shows_what_each_role_cost_and_when(work: Path, result: RunResult) -> None:
    data = json.loads(show(work, result, "--json"))
    roles = {role["role"]: role for role in data["model"]["roles"]}
    calls = {name: role["calls"] for name, role in roles.items()}
    assert calls == {"planner": 1, "implementer": 4, "reviewer": 2, "consolidator": 1}
    assert all(role["tokens"] > 0 for role in roles.values())
    first, *others = data["model"]["calls"]
    assert (first["role"], first["began_s"]) == ("planner", 0.0)
    assert all(call["began_s"] >= 0.0 for call in others)
    text = show(work, result)
    assert "  reviewer           2     0      0" in text
    assert f"implementer {NORM} round 1 sample 0: " in text
