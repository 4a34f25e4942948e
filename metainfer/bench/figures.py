"""From one turn's timelines to named figures; the names are those of reports, goals and tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.bench import cost, metrics
from metainfer.bench.ceiling import Ceiling, better
from metainfer.bench.metrics import Timeline
from metainfer.bench.subject import SubjectInfo

if TYPE_CHECKING:
    from metainfer.checkpoint.facts import ModelFacts


@dataclass(frozen=True, slots=True)
class FigureKind:
    """How a figure is shown and which way is better."""

    label: str
    unit: str
    more_is_better: bool


FIGURES: dict[str, FigureKind] = {
    "decode_tokens_per_s": FigureKind("decode", "tokens/s", True),
    "decode_tpot_ms": FigureKind("decode TPOT", "ms", False),
    "decode_ttft_ms": FigureKind("decode TTFT", "ms", False),
    "decode_itl_ms_p50": FigureKind("decode ITL p50", "ms", False),
    "decode_itl_ms_p95": FigureKind("decode ITL p95", "ms", False),
    "decode_itl_ms_p99": FigureKind("decode ITL p99", "ms", False),
    "decode_mbu": FigureKind("decode MBU", "", True),
    "decode_cores": FigureKind("decode cores in use", "", False),
    "prefill_ttft_ms": FigureKind("prefill TTFT", "ms", False),
    "prefill_tokens_per_s": FigureKind("prefill", "tokens/s", True),
    "prefill_mfu": FigureKind("prefill MFU", "", True),
    "load_output_tokens_per_s": FigureKind("load, output", "tokens/s", True),
    "load_ttft_ms_p50": FigureKind("load TTFT p50", "ms", False),
    "load_ttft_ms_p95": FigureKind("load TTFT p95", "ms", False),
    "load_tpot_ms": FigureKind("load TPOT", "ms", False),
    "load_itl_ms_p50": FigureKind("load ITL p50", "ms", False),
    "load_itl_ms_p95": FigureKind("load ITL p95", "ms", False),
    "load_itl_ms_p99": FigureKind("load ITL p99", "ms", False),
}
"""`decode` and `prefill`: one request at a time. `load`: the closed loop of several clients."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one subject did in one repeat, between two readings of the ceiling."""

    decode: Timeline
    prefill: Timeline
    load: tuple[Timeline, ...]
    """Empty for a subject that serves one request at a time."""
    decode_cores: float
    """CPU seconds of its processes over wall seconds while it decoded."""
    before: Ceiling
    after: Ceiling


def turn_figures(turn: Turn, info: SubjectInfo, model: ModelFacts) -> dict[str, float]:
    """All figures of one turn. Infinite ones (a clock too coarse for the request) are left out."""
    memory_gb_s, compute_gflop_s = better(turn.before, turn.after)
    figures = _decode_figures(turn, info, model, memory_gb_s) | _prefill_figures(turn, model, compute_gflop_s)
    if turn.load:
        figures |= _load_figures(turn.load)
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _decode_figures(turn: Turn, info: SubjectInfo, model: ModelFacts, memory_gb_s: float) -> dict[str, float]:
    timeline = turn.decode
    rate = metrics.decode_tokens_per_s(timeline)
    token_bytes = cost.decode_bytes_per_token(
        model,
        context=cost.mean_decode_context(timeline.prompt_tokens, timeline.output_tokens),
        weight_bytes=cost.BYTES_OF_DTYPE[info.weight_dtype],
        kv_bytes=cost.BYTES_OF_DTYPE[info.kv_dtype],
    )
    return {
        "decode_tokens_per_s": rate,
        "decode_tpot_ms": metrics.tpot_ms(timeline),
        "decode_ttft_ms": metrics.ttft_ms(timeline),
        "decode_mbu": token_bytes * rate / (memory_gb_s * 1e9),
        "decode_cores": turn.decode_cores,
    } | _itl_percentiles("decode", metrics.itl_ms(timeline))


def _prefill_figures(turn: Turn, model: ModelFacts, compute_gflop_s: float) -> dict[str, float]:
    wait_ms = metrics.ttft_ms(turn.prefill)
    flops = cost.prefill_flops(model, turn.prefill.prompt_tokens)
    return {
        "prefill_ttft_ms": wait_ms,
        "prefill_tokens_per_s": metrics.prefill_tokens_per_s(turn.prefill),
        "prefill_mfu": flops / (wait_ms / 1e3) / (compute_gflop_s * 1e9) if wait_ms else math.inf,
    }


def _load_figures(timelines: Sequence[Timeline]) -> dict[str, float]:
    waits = [metrics.ttft_ms(timeline) for timeline in timelines]
    return {
        "load_output_tokens_per_s": metrics.output_tokens_per_s(timelines),
        "load_ttft_ms_p50": metrics.percentile(waits, 50),
        "load_ttft_ms_p95": metrics.percentile(waits, 95),
        "load_tpot_ms": statistics.fmean(metrics.tpot_ms(timeline) for timeline in timelines),
    } | _itl_percentiles("load", [gap for timeline in timelines for gap in metrics.itl_ms(timeline)])


def _itl_percentiles(phase: str, gaps_ms: Sequence[float]) -> dict[str, float]:
    """Empty where all tokens of a request arrived at once."""
    if not gaps_ms:
        return {}
    return {f"{phase}_itl_ms_p{percent}": metrics.percentile(gaps_ms, percent) for percent in (50, 95, 99)}
