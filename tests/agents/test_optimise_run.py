"""Whole runs that optimise: from the spec to a pull request that says what was tried, what won, and what did not."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from metainfer.errors import InputError
from metainfer.forge.protocol import Forge
from metainfer.forge.setup import create_local_forge, open_forge
from metainfer.generate.regenerate import differences, regenerate
from metainfer.pipeline.agents import AgentAccess
from metainfer.pipeline.optimise_report import OptimiseReport
from metainfer.pipeline.replay import replay
from metainfer.pipeline.run import RunRequest, RunResult, run
from metainfer.progress import Silent
from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS, SWIGLU, fenced
from tests.agents.scripted_endpoint import answers, scripted
from tests.agents.slow_units import SAME_SWIGLU, SLOW_RMSNORM

ROOT = Path(__file__).parents[2]
ENGINE = "tiny-qwen3"
pytestmark = pytest.mark.slow


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


def slow_then_quick(body: dict[str, Any]) -> str:
    """A slow norm at first; asked for a faster one, a wrong one, and told so, a right one. The MLP stays as fast."""
    messages = body["messages"]
    task = messages[1]["content"]
    if "<present>" not in task:
        return fenced(SLOW_RMSNORM if "Write RMSNorm" in task else SWIGLU)
    if "Write RMSNorm" in task:
        return fenced(RMSNORM if len(messages) > 2 else RMSNORM_WITHOUT_EPS)
    return fenced(SAME_SWIGLU)


def optimising(work: Path, answer: Any, spec: str, **generation: Any) -> RunResult:
    with scripted(answers(answer)) as endpoint:
        request = RunRequest(
            spec_path=work / "specs" / f"{spec}.yaml",
            repo_root=work,
            state=work / ".metainfer",
            cache=work.parent / "cache",
            bench=False,
            agents=AgentAccess(endpoint.base_url),
            generation={"model": "scripted", "optimise": True, "rounds": 1, **generation},
        )
        return run(request, open_forge(work), Silent())


@pytest.fixture(scope="module")
def faster(work: Path) -> RunResult:
    contracts = ["family/rmsnorm", "family/swiglu-mlp"]
    return optimising(work, slow_then_quick, ENGINE, backend="agents", reference="none", contracts=contracts)


def report_of(result: RunResult) -> OptimiseReport:
    assert result.optimised is not None
    return result.optimised


def test_the_quick_variant_wins_and_stands_in_the_engine(faster: RunResult) -> None:
    assert faster.status == "published"
    assert faster.manifest is not None
    assert faster.manifest.agent is not None
    assert faster.manifest.agent.optimised == ("family/rmsnorm",)
    [kept] = report_of(faster).kept
    assert kept.kept is not None
    assert kept.kept.duel is not None
    assert kept.kept.duel.won
    assert kept.kept.duel.ratio > 1.5
    assert faster.run_folder is not None
    engine = faster.run_folder / ENGINE
    assert (engine / "units" / "family.rmsnorm.py").read_text().strip() == RMSNORM.strip()
    assert "_TIMES" not in (engine / "tiny_qwen3" / "layers.py").read_text()


def test_a_variant_that_is_as_fast_is_not_kept(faster: RunResult) -> None:
    tried = {one.contract: one for one in report_of(faster).tried}
    [trial] = tried["family/swiglu-mlp"].trials
    assert trial.verdict == "not faster"
    assert trial.duel is not None
    assert faster.run_folder is not None
    kept = (faster.run_folder / ENGINE / "units" / "family.swiglu-mlp.py").read_text()
    assert kept.strip() == SWIGLU.strip()


def test_a_variant_that_is_wrong_is_rejected_by_the_checks_and_hears_why(faster: RunResult) -> None:
    assert faster.run_folder is not None
    outcomes = {one["contract"]: one for one in json.loads((faster.run_folder / "variants.json").read_text())}
    wrong, right = outcomes["family/rmsnorm"]["attempts"]
    assert "check_matches_float64" in wrong["findings"][0]
    assert right["findings"] == []
    assert [trial.round for trial in report_of(faster).tried[0].trials] == [1]


def test_the_slow_unit_was_the_hottest(faster: RunResult) -> None:
    assert next(iter(report_of(faster).shares)) == "family/rmsnorm"
    assert faster.run_folder is not None
    profile = json.loads((faster.run_folder / "profile.json").read_text())
    assert set(profile["phases"]) == {"prefill", "decode", "load"}


def test_the_evidence_is_of_the_engine_as_proposed(work: Path, faster: RunResult) -> None:
    forge: Forge = open_forge(work)
    assert faster.outcome is not None
    evidence = json.loads(forge.read_file(faster.outcome.head, f"engines/{ENGINE}/evidence.json") or b"{}")
    assert [report["verdict"] for report in evidence["gates"]] == ["passed"] * 5
    assert {report["reproduce"].split(" --")[0] for report in evidence["gates"]} == {
        f"metainfer gate {report['gate']} engines/{ENGINE}" for report in evidence["gates"]
    }
    assert [one["contract"] for one in evidence["optimise"]["tried"]] == ["family/rmsnorm", "family/swiglu-mlp"]


def test_the_pull_request_says_what_won_and_what_did_not(work: Path, faster: RunResult) -> None:
    assert faster.outcome is not None
    assert faster.outcome.number is not None
    body = open_forge(work).get(faster.outcome.number).body
    assert "### Optimisation" in body
    assert "it made `family/rmsnorm` measurably faster" in body
    assert "**kept**" in body
    assert "**not faster**" in body


def test_the_transcript_makes_the_faster_engine_again(work: Path, faster: RunResult) -> None:
    assert faster.run_folder is not None
    engine = faster.run_folder / ENGINE
    assert replay(faster.run_folder, ENGINE, work / "ckb") == []
    assert differences(engine, regenerate(engine, work / "ckb")) == []
    transcript = faster.run_folder / "transcript.jsonl"
    said = transcript.read_text()
    turns = [json.loads(line) for line in said.splitlines()]
    for turn in turns:
        if turn["purpose"]["role"] == "optimiser":
            turn["purpose"]["role"] = "implementer"
    transcript.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    with pytest.raises(InputError, match=r"transcript\.jsonl: holds no answer of the optimiser"):
        replay(faster.run_folder, ENGINE, work / "ckb")
    transcript.write_text(said)


def test_exemplars_that_nobody_beats_stay_and_that_is_told(work: Path) -> None:
    def slower(body: dict[str, Any]) -> str:
        return fenced(SLOW_RMSNORM)

    result = optimising(work, slower, "tiny-qwen2", reference="exemplars", contracts=["family/rmsnorm"])
    assert result.status == "published"
    assert result.manifest is not None
    assert {unit.backend for unit in result.manifest.units} == {"specializer"}
    assert result.manifest.agent is not None
    assert result.manifest.agent.optimised == ()
    assert result.manifest.agent.tokens > 0
    [tried] = report_of(result).tried
    assert [trial.verdict for trial in tried.trials] == ["not faster"]
    assert result.run_folder is not None
    assert replay(result.run_folder, "tiny-qwen2", work / "ckb") == []
