"""The performance gate: the spec's goals, held against a benchmark of this run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.gates.report import GateFinding, GateReport, reproduction

if TYPE_CHECKING:
    from metainfer.bench.report import BenchReport
    from metainfer.spec.models import Spec


def performance_report(spec: Spec, bench: BenchReport, engine_dir: Path) -> GateReport | None:
    """A report on the spec's goals; None if it has none, since figures without a goal are no gate."""
    wanted = {name: value for name, value in spec.goals.model_dump().items() if value is not None}
    if not wanted:
        return None
    judged = {goal.goal: goal for goal in bench.goals}
    findings: list[GateFinding] = []
    figures: dict[str, float | str] = {}
    for name, value in wanted.items():
        goal = judged.get(name)
        # People read these; the benchmark beside them keeps every digit.
        measured = float(f"{goal.measured:.4g}") if goal and goal.measured is not None else "none"
        figures[f"{name} (wanted {value:g})"] = measured
        if goal is None or not goal.met:
            note = (goal.note if goal else "") or "not met"
            findings.append(GateFinding(message=f"{name}: {note}", figures={"wanted": value, "measured": measured}))
    return GateReport(
        gate="performance",
        verdict="failed" if findings else "passed",
        figures=dict(figures),
        findings=findings,
        seconds=round(bench.seconds, 3),
        reproduce=reproduction("performance", engine_dir).replace("metainfer gate performance", "metainfer bench"),
    )
