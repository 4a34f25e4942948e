"""The spec's goals, held against the engine's medians."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from metainfer.bench.figures import FIGURES
from metainfer.bench.report import GoalResult, Ratio, SubjectReport

ALIASES = {
    "ttft_ms_p95": "load_ttft_ms_p95",
    "ttft_ms_p50": "load_ttft_ms_p50",
    "tpot_ms": "decode_tpot_ms",
    "itl_ms_p95": "load_itl_ms_p95",
    "output_tokens_per_s": "load_output_tokens_per_s",
}
"""Short names of goals. Percentiles are those of the closed loop: one request at a time has no distribution."""
_RATIO = re.compile(r"(?P<figure>decode|prefill)_over_(?P<peer>\w+)")
_PEAK = "peak_rss_mb"


def judge_goals(goals: Mapping[str, float], engine: SubjectReport, ratios: Sequence[Ratio]) -> tuple[GoalResult, ...]:
    """One result per goal, in order. A goal without a figure is not met, and says so.

    Names: any of `FIGURES`, an alias of `ALIASES`, `peak_rss_mb` (10^6 bytes), or `decode_over_PEER`,
    `prefill_over_PEER` (ratio of tokens/s).
    """
    return tuple(_judge(goal, wanted, engine, ratios) for goal, wanted in goals.items())


def _judge(goal: str, wanted: float, engine: SubjectReport, ratios: Sequence[Ratio]) -> GoalResult:
    figure = ALIASES.get(goal, goal)
    ratio = _RATIO.fullmatch(goal)
    at_least = ratio is not None or (figure in FIGURES and FIGURES[figure].more_is_better)
    note = "" if figure == goal else f"as {figure}"
    measured: float | None = None
    if ratio:
        figure = f"{ratio['figure']}_tokens_per_s"
        found = [r for r in ratios if r.figure == figure and r.peer == ratio["peer"]]
        measured = found[0].ratio.median if found else None
    elif figure == _PEAK:
        measured = engine.memory.peak_rss_bytes / 1e6 if engine.memory else None
    elif figure in engine.figures:
        measured = engine.figures[figure].median
    elif figure not in FIGURES:
        note = f"the benchmark has no figure of this name; it knows {', '.join([*ALIASES, *FIGURES, _PEAK])}"
    if measured is None:
        return GoalResult(
            goal=goal,
            wanted=wanted,
            at_least=at_least,
            measured=None,
            met=False,
            note=note or "not measured in this run",
        )
    met = measured >= wanted if at_least else measured <= wanted
    return GoalResult(goal=goal, wanted=wanted, at_least=at_least, measured=measured, met=met, note=note)
