"""What the figures mean: pure functions over recorded instants (CLOCK_MONOTONIC, nanoseconds)."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

NS_PER_MS = 1e6
NS_PER_S = 1e9

FORMULAS: dict[str, str] = {
    "TTFT": "first arrival - request sent",
    "TPOT": "(last arrival - first arrival) / (output tokens - 1)",
    "ITL": "gap between consecutive arrivals; percentiles interpolate linearly between ranks",
    "decode tokens/s": "1 / TPOT, one request at a time",
    "prefill tokens/s": "prompt tokens / TTFT, one request at a time",
    "output tokens/s": "all output tokens / (last arrival - first request sent), over all clients",
    "MBU": "bytes per decoded token x decode tokens/s / memory ceiling",
    "MFU": "operations of the prompt / TTFT / compute ceiling",
    "ceiling of a figure": "the better of the readings just before and just after it",
    "bytes per decoded token": "every weight once (one embedding row; a tied matrix once, as the head)"
    " + keys and values of the mean context",
    "operations of the prompt": "2 per multiplied weight and token (head: last token only)"
    " + 4 x head width x heads x layers per attended pair",
    "ratio": "engine / peer within one repeat, then the median over repeats",
}
"""Printed with every report, so that no figure is read without its definition."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One request as its client saw it. `arrivals_ns` ascend; each brought at least one token."""

    sent_ns: int
    arrivals_ns: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    """As counted by the answer; more than arrivals where several tokens came at once."""
    token_ids: tuple[int, ...] | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if not self.arrivals_ns:
            raise ValueError("a timeline needs at least one arrival: the request brought no token")
        if self.output_tokens < 1:
            raise ValueError(f"a timeline needs at least one output token, not {self.output_tokens}")
        instants = (self.sent_ns, *self.arrivals_ns)
        if any(later < earlier for earlier, later in itertools.pairwise(instants)):
            raise ValueError("the instants of a timeline must ascend, beginning with the request")

    @property
    def merged_tokens(self) -> int:
        """Tokens that came together with another one, so that their own instant is not known."""
        return max(0, self.output_tokens - len(self.arrivals_ns))


def ttft_ms(timeline: Timeline) -> float:
    """Time to first token."""
    return (timeline.arrivals_ns[0] - timeline.sent_ns) / NS_PER_MS


def tpot_ms(timeline: Timeline) -> float:
    """Mean time per output token after the first. Raises ValueError for fewer than two tokens."""
    if timeline.output_tokens < 2:
        raise ValueError("the time per output token needs at least two output tokens")
    return (timeline.arrivals_ns[-1] - timeline.arrivals_ns[0]) / (timeline.output_tokens - 1) / NS_PER_MS


def itl_ms(timeline: Timeline) -> list[float]:
    """Gaps between consecutive arrivals; one fewer than arrivals."""
    return [(later - earlier) / NS_PER_MS for earlier, later in itertools.pairwise(timeline.arrivals_ns)]


def decode_tokens_per_s(timeline: Timeline) -> float:
    """The inverse of TPOT. Infinite if all tokens came at one instant."""
    per_token_ms = tpot_ms(timeline)
    return math.inf if per_token_ms == 0 else 1e3 / per_token_ms


def prefill_tokens_per_s(timeline: Timeline) -> float:
    """Prompt tokens over TTFT; the first token's own decoding is in it, as the client waits for that too."""
    wait_ms = ttft_ms(timeline)
    return math.inf if wait_ms == 0 else timeline.prompt_tokens / wait_ms * 1e3


def output_tokens_per_s(timelines: Sequence[Timeline]) -> float:
    """Output tokens of all requests over the span from the first request to the last arrival."""
    if not timelines:
        raise ValueError("throughput needs at least one request")
    span_ns = max(t.arrivals_ns[-1] for t in timelines) - min(t.sent_ns for t in timelines)
    tokens = sum(t.output_tokens for t in timelines)
    return math.inf if span_ns == 0 else tokens * NS_PER_S / span_ns


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the sorted values lie, interpolated linearly between ranks."""
    if not values:
        raise ValueError("a percentile needs at least one value")
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile lies between 0 and 100, not at {percent}")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    # Clamped: the rounding of the interpolation must not leave the interval.
    between = ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
    return min(max(between, ordered[below]), ordered[above])


class Spread(BaseModel):
    """A figure measured several times: what is quoted (the median), and how far it moved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    median: float
    min: float
    max: float
    values: tuple[float, ...]
    """In the order measured."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            raise ValueError("a spread needs at least one value")
        return cls(median=statistics.median(values), min=min(values), max=max(values), values=tuple(values))

    @property
    def noise(self) -> float:
        """Half the range over the median: 0.05 reads as ± 5 %."""
        return (self.max - self.min) / 2 / self.median if self.median else 0.0
