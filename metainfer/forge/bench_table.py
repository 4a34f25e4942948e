"""A benchmark report as Markdown: one row per figure, one column per subject, each with its spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metainfer.bench.figures import FIGURES
from metainfer.forge.markdown import inline, table

_MAX_SUBJECTS = 6


def bench_table(bench: Mapping[str, Any]) -> list[str]:
    """The lines of the table of figures, its two head lines first; empty when the report has none.

    `bench` is the data of a `metainfer.bench.report.BenchReport`, read as untrusted: what is not of the expected
    shape is left out.
    """
    subjects = _dicts(bench.get("subjects"))[:_MAX_SUBJECTS]
    measured = [_dict(subject.get("figures")) for subject in subjects]
    names = [name for name in FIGURES if any(name in figures for figures in measured)]
    if not names:
        return []
    columns = ["figure", *(inline(_dict(subject.get("info")).get("name", "?"), 40) for subject in subjects)]
    rows = []
    for name in names:
        kind = FIGURES[name]
        unit = f", {kind.unit}" if kind.unit else ""
        rows.append([inline(kind.label + unit), *(spread(figures.get(name)) for figures in measured)])
    rows.append(["peak memory, MB", *(_megabytes(subject.get("memory")) for subject in subjects)])
    return table(columns, rows)


def bench_remarks(bench: Mapping[str, Any]) -> list[str]:
    """List items on what the figures mean: doubts first, then goals, comparisons, and how each subject ran."""
    lines = [f"- **warning:** {inline(text)}" for text in _strings(bench.get("warnings"))]
    lines += [
        f"- no figures for {inline(m.get('name'))}: {inline(m.get('reason'))}" for m in _dicts(bench.get("missing"))
    ]
    for goal in _dicts(bench.get("goals")):
        bound = "at least" if goal.get("at_least") else "at most"
        verdict = "met" if goal.get("met") is True else "**NOT MET**"
        lines.append(
            f"- goal {inline(goal.get('goal'))} {bound} {inline(goal.get('wanted'))}: "
            f"measured {inline(goal.get('measured', 'nothing'))}, {verdict}"
        )
    for ratio in _dicts(bench.get("ratios")):
        name = str(ratio.get("figure"))
        title = FIGURES[name].label if name in FIGURES else name
        lines.append(f"- {inline(title)}: {spread(ratio.get('ratio'))} times {inline(ratio.get('peer'))}")
    for subject in _dicts(bench.get("subjects")):
        info = _dict(subject.get("info"))
        lines.append(
            f"- {inline(info.get('name'))} {inline(info.get('version'))}: {inline(info.get('weight_dtype'))} weights, "
            f"{inline(info.get('threads'))} threads, {inline(info.get('mode'))}"
        )
    noise = _dict(bench.get("noise"))
    if noise:
        lines.append(
            f"- {inline(bench.get('repeats_done'))} repeats; other work on the machine took "
            f"{inline(noise.get('foreign_share'))} of its cores' time, other guests {inline(noise.get('steal_share'))}"
        )
    return lines


def spread(value: object) -> str:
    """`median (min – max)`; empty for what is not a spread."""
    figures = _dict(value)
    if not all(isinstance(figures.get(key), int | float) for key in ("median", "min", "max")):
        return ""
    return f"{inline(float(figures['median']))} ({inline(float(figures['min']))} – {inline(float(figures['max']))})"


def _megabytes(memory: object) -> str:
    peak = _dict(memory).get("peak_rss_bytes")
    return f"{peak / 1e6:.0f}" if isinstance(peak, int) and 0 < peak < 1 << 60 else ""


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, Sequence) else []


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else []
