"""What people read of a run: short figures, and no time twice."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from metainfer.bench.report import GoalResult
from metainfer.commands.run import describe
from metainfer.console import JsonReporter, PlainReporter
from metainfer.gates.report import GateReport
from metainfer.gates.runner import summary
from metainfer.pipeline.performance import performance_report
from metainfer.pipeline.run import RunResult

MEASURED = 0.6463702831181611


def a_benchmark(measured: float | None, *, warnings: tuple[str, ...] = ()) -> Any:
    met = measured is not None and measured >= 0.7
    goal = GoalResult(goal="decode_mbu", wanted=0.7, at_least=True, measured=measured, met=met, note="")
    return SimpleNamespace(goals=(goal,), subjects=(), seconds=1.0, warnings=warnings)


def test_a_step_says_once_how_long_it_took() -> None:
    stream = io.StringIO()
    reporter = PlainReporter(stream)
    report = GateReport(gate="spec", verdict="passed", figures={}, findings=[], seconds=0.0, reproduce="metainfer")
    reporter.start("spec")
    reporter.done("spec", summary(report))
    assert stream.getvalue() == "… spec\n✓ spec (at once): passed\n"


def test_a_program_gets_the_seconds_of_a_step() -> None:
    stream = io.StringIO()
    reporter = JsonReporter(stream)
    reporter.start("spec")
    reporter.done("spec", "passed")
    done = json.loads(stream.getvalue().splitlines()[-1])
    assert 0 <= done.pop("seconds") < 1
    assert done == {"event": "done", "step": "spec", "message": "passed"}


def test_goals_are_told_in_four_digits() -> None:
    for measured, told in ((MEASURED, "0.6464"), (None, "nothing")):
        text = describe(RunResult("red", "tiny", "0" * 64, "red", bench=a_benchmark(measured)))
        assert f"decode_mbu: wanted 0.7, measured {told}\n" in text


def test_what_makes_figures_doubtful_stands_beside_a_missed_goal() -> None:
    busy = "other processes used 45% of the machine's cores meanwhile"
    missed = describe(RunResult("red", "tiny", "0" * 64, "red", bench=a_benchmark(0.2, warnings=(busy,))))
    assert f"  doubtful: {busy}\n  a goal may have been missed because of that" in missed
    met = describe(RunResult("published", "tiny", "0" * 64, "new", bench=a_benchmark(0.8, warnings=(busy,))))
    assert busy in met
    assert "may have been missed" not in met
    quiet = describe(RunResult("red", "tiny", "0" * 64, "red", bench=a_benchmark(0.2)))
    assert "doubtful" not in quiet
    assert "may have been missed" not in quiet


def test_the_performance_gates_figures_are_for_people() -> None:
    spec: Any = SimpleNamespace(goals=SimpleNamespace(model_dump=lambda: {"decode_mbu": 0.7}))
    report = performance_report(spec, a_benchmark(MEASURED), Path("engines/tiny"))
    assert report is not None
    assert report.figures == {"decode_mbu (wanted 0.7)": 0.6464}
    assert report.findings[0].figures == {"wanted": 0.7, "measured": 0.6464}
