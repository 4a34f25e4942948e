"""Scores that a person can count, and a limit that is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metainfer.agents.budget import Limits
from metainfer.ckb.mutants import default_deployments
from metainfer.errors import InputError
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.scratch import scratch_inputs
from metainfer.pipeline.agents import AgentAccess
from metainfer.pipeline.eval_report import EvalReport, Score, plot, read_report, render, side_by_side
from metainfer.pipeline.evaluate import EvalPlan, evaluate
from metainfer.progress import Silent
from metainfer.sandbox import Sandbox
from metainfer.spec.models import Generation
from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS, SWIGLU, fenced
from tests.agents.scripted_endpoint import answers, fails, scripted

CKB = Path(__file__).parents[2] / "ckb"
SETTINGS = Generation(
    backend="agents", model="scripted", reference="none", contracts=["family/rmsnorm", "family/swiglu-mlp"], rounds=0
)


@pytest.fixture(scope="module")
def inputs() -> EngineInputs:
    deployment = default_deployments()[0]
    return scratch_inputs(CKB, deployment.facts, deployment.model)


def second_sample_is_wrong(body: dict[str, Any]) -> str:
    if "Write SwiGLU" in body["messages"][1]["content"]:
        return fenced(SWIGLU)
    return fenced(RMSNORM_WITHOUT_EPS if body["seed"] == 2 else RMSNORM)


def run(inputs: EngineInputs, folder: Path, limits: Limits) -> EvalReport:
    with scripted(answers(second_sample_is_wrong)) as endpoint:
        access = AgentAccess(endpoint.base_url, concurrency=2)
        plan = EvalPlan(SETTINGS, 3, limits, folder)
        return evaluate(inputs, plan, access, sandbox=Sandbox(), progress=Silent())


def test_what_holds_is_counted(inputs: EngineInputs, tmp_path: Path) -> None:
    report = run(inputs, tmp_path / "eval" / "one", Limits())
    norm, mlp = report.scores
    assert (norm.contract, norm.samples, norm.passed) == ("family/rmsnorm", 3, 2)
    assert norm.pass_at(1) == pytest.approx(2 / 3)
    assert norm.pass_at(3) == 1.0
    assert "check_matches_float64" in norm.finding
    assert (mlp.units, mlp.samples, mlp.passed) == (["SwiGLU"], 3, 3)
    assert report.unfinished == []
    assert "2 of 2 contracts held at least once" in render(report)


@pytest.mark.slow
def test_a_limit_ends_it_and_is_told(inputs: EngineInputs, tmp_path: Path) -> None:
    report = run(inputs, tmp_path / "eval" / "one", Limits(calls=3))
    assert sum(score.samples for score in report.scores) == 3
    assert report.unfinished
    assert "calls" in report.stopped
    assert "not finished" in render(report)


@pytest.mark.parametrize(
    ("samples", "passed", "k", "expected"), [(3, 0, 1, 0.0), (3, 3, 3, 1.0), (4, 1, 2, 0.5), (10, 3, 1, 0.3)]
)
def test_pass_at_k_is_the_chance_that_one_of_k_holds(samples: int, passed: int, k: int, expected: float) -> None:
    score = Score(contract="c", units=[], samples=samples, passed_first=0, passed=passed, tokens=0, finding="")
    assert score.pass_at(k) == pytest.approx(expected)
    assert score.pass_at(samples + 1) is None


@pytest.mark.slow
def test_an_endpoint_that_goes_away_leaves_what_was_measured(inputs: EngineInputs, tmp_path: Path) -> None:
    with scripted(answers(second_sample_is_wrong), answers(second_sample_is_wrong), fails(401)) as endpoint:
        plan = EvalPlan(SETTINGS, 3, Limits(), tmp_path / "eval" / "one")
        report = evaluate(inputs, plan, AgentAccess(endpoint.base_url), sandbox=Sandbox(), progress=Silent())
    assert sum(score.samples for score in report.scores) == 2
    assert "401" in report.stopped
    assert report.unfinished


def made(model: str, **scores: tuple[int, int]) -> EvalReport:
    """A report of contracts by their samples and those that held."""
    return EvalReport(
        model=model, reference="none", k=3, rounds=0, temperature=0.7, prompts=1, unfinished=[], tokens=1000,
        cost_usd=0.5, wall_s=12.0,
        scores=[Score(contract=name, units=[], samples=n, passed_first=c, passed=c, tokens=1, finding="")
                for name, (n, c) in scores.items()],
    )  # fmt: skip


def test_evaluations_stand_side_by_side() -> None:
    table = side_by_side([made("small", rope=(3, 0), norm=(3, 1)), made("large", rope=(2, 2), mlp=(0, 0))])
    assert table.splitlines()[0] == "| contract | small, none | large, none |"
    rows = {line.split(" | ")[0].strip("| "): line for line in table.splitlines()}
    assert rows["rope"] == "| rope | 0.00 / 0.00 | 1.00 / - (n=2) |"
    assert rows["norm"] == "| norm | 0.33 / 1.00 | - |"
    assert rows["mlp"] == "| mlp | - | - |"
    assert rows["*held at least once*"] == "| *held at least once* | 1 of 2 | 1 of 1 |"


def test_a_plot_names_every_contract_and_report(tmp_path: Path) -> None:
    plot([made("small", rope=(3, 0), norm=(3, 1)), made("large", rope=(2, 2))], tmp_path / "scores.svg")
    words = (tmp_path / "scores.svg").read_text()
    assert words.lstrip().startswith("<?xml")
    assert all(f"<!-- {word} -->" in words for word in ("rope", "norm", "small", "large", "0.33", "1.00"))


def test_a_plot_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"scores\.tiny"):
        plot([made("small", rope=(3, 0))], tmp_path / "scores.tiny")


def test_a_file_that_is_no_report_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match=r"x\.json: no report"):
        read_report(tmp_path / "x.json")
    with pytest.raises(InputError, match=r"y\.json"):
        read_report(tmp_path / "y.json")
