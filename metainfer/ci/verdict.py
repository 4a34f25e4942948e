"""A verdict as the summary of the step that reached it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metainfer.forge.bench_table import bench_remarks, bench_table
from metainfer.forge.markdown import code, inline, table

if TYPE_CHECKING:
    from metainfer.gates.report import Evidence


def markdown(evidence: Evidence) -> str:
    """Gates with their figures, what failed and how to repeat it, and the benchmark. All of it is untrusted text."""
    rows = [
        [
            inline(report.gate, 40),
            "passed" if report.passed else f"**{inline(report.verdict, 20)}**",
            ", ".join(f"{inline(name, 40)} {inline(value, 60)}" for name, value in list(report.figures.items())[:8]),
            f"{inline(report.seconds)} s",
        ]
        for report in evidence.gates
    ]
    lines = [
        f"### {'Green' if evidence.green else 'RED'}",
        "",
        *table(["gate", "verdict", "figures", "took"], rows),
        "",
    ]
    for report in evidence.gates:
        if report.passed:
            continue
        lines += [
            f"- {inline(finding.message)}{f' ({inline(finding.where, 120)})' if finding.where else ''}"
            for finding in report.findings[:20]
        ]
        lines.append(f"- reproduce: {code(report.reproduce)}")
    if evidence.bench:
        lines += ["", *bench_table(evidence.bench), "", *bench_remarks(evidence.bench)]
    return "\n".join(lines) + "\n"
