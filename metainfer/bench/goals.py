"""The spec's goals, held against the engine's figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from metainfer.bench.figures import FIGURES
from metainfer.bench.metrics import percentile
from metainfer.bench.report import GoalResult, Ratio, SubjectReport

TAILS = {"ttft_ms_p95": "prefill_ttft_ms", "tpot_ms_p95": "decode_tpot_ms"}
"""Goals about the slow end: the 95th percentile over repeats of a figure of one request at a time."""
_RATIO = re.compile(r"(?P<figure>decode|prefill)_over_(?P<peer>\w+)")
_PEAK = "peak_rss_mb"
_TAIL_PERCENT = 95


def judge_goals(goals: Mapping[str, float], engine: SubjectReport, ratios: Sequence[Ratio]) -> tuple[GoalResult, ...]:
    """One result per goal, in order. A goal without a figure is not met, and says so.

    Names: any of `FIGURES` (their median), any of `TAILS`, `peak_rss_mb` (10^6 bytes), or `decode_over_PEER` and
    `prefill_over_PEER` (median ratio of tokens/s).
    """
    return tuple(_judge(goal, wanted, engine, ratios) for goal, wanted in goals.items())


def _judge(goal: str, wanted: float, engine: SubjectReport, ratios: Sequence[Ratio]) -> GoalResult:
    measured, note = _measured(goal, engine, ratios)
    at_least = _RATIO.fullmatch(goal) is not None or (goal in FIGURES and FIGURES[goal].more_is_better)
    met = measured is not None and (measured >= wanted if at_least else measured <= wanted)
    return GoalResult(goal=goal, wanted=wanted, at_least=at_least, measured=measured, met=met, note=note)


def _measured(goal: str, engine: SubjectReport, ratios: Sequence[Ratio]) -> tuple[float | None, str]:
    """The figure that the goal is about and a note on it; None where this run does not have it."""
    not_measured = None, "not measured in this run"
    if ratio := _RATIO.fullmatch(goal):
        figure = f"{ratio['figure']}_tokens_per_s"
        found = [entry.ratio.median for entry in ratios if (entry.figure, entry.peer) == (figure, ratio["peer"])]
        return (found[0], "") if found else not_measured
    if goal in TAILS:
        figure = TAILS[goal]
        if figure not in engine.figures:
            return not_measured
        values = engine.figures[figure].values
        return percentile(values, _TAIL_PERCENT), f"{figure}, 95th percentile of {len(values)} repeats"
    if goal == _PEAK:
        return (engine.memory.peak_rss_bytes / 1e6, "") if engine.memory else not_measured
    if goal in FIGURES:
        return (engine.figures[goal].median, "") if goal in engine.figures else not_measured
    known = ", ".join([*TAILS, *FIGURES, _PEAK, "decode_over_PEER", "prefill_over_PEER"])
    return None, f"the benchmark has no figure of this name; it knows {known}"
