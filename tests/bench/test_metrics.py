"""The figures' formulas, held against definitions written another way."""

from __future__ import annotations

import dataclasses
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.bench.metrics import (
    FORMULAS,
    Spread,
    Timeline,
    decode_tokens_per_s,
    itl_ms,
    output_tokens_per_s,
    percentile,
    prefill_tokens_per_s,
    tpot_ms,
    ttft_ms,
)

FLOATS = st.floats(-1e9, 1e9, allow_nan=False)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """One token per arrival, between two and forty of them, gaps up to ten seconds."""
    gaps = draw(st.lists(st.integers(1, 10**10), min_size=2, max_size=40))
    sent = draw(st.integers(0, 10**15))
    arrivals = tuple(int(instant) for instant in sent + np.cumsum(gaps))
    return Timeline(sent, arrivals, draw(st.integers(1, 4096)), len(arrivals))


def test_a_request_worked_out_by_hand() -> None:
    ms = 1_000_000
    timeline = Timeline(1000 * ms, (1500 * ms, 1520 * ms, 1550 * ms, 1560 * ms), prompt_tokens=100, output_tokens=4)
    assert ttft_ms(timeline) == 500
    assert tpot_ms(timeline) == 20
    assert itl_ms(timeline) == [20, 30, 10]
    assert decode_tokens_per_s(timeline) == 50
    assert prefill_tokens_per_s(timeline) == 200
    assert output_tokens_per_s([timeline]) == pytest.approx(4 / 0.56)


@given(timelines())
def test_waits_and_gaps_add_up_to_the_whole_request(timeline: Timeline) -> None:
    whole_ms = (timeline.arrivals_ns[-1] - timeline.sent_ns) / 1e6
    assert ttft_ms(timeline) + sum(itl_ms(timeline)) == pytest.approx(whole_ms)


@given(timelines())
def test_tpot_is_the_mean_gap_when_every_token_arrives_alone(timeline: Timeline) -> None:
    assert tpot_ms(timeline) == pytest.approx(statistics.fmean(itl_ms(timeline)))
    assert decode_tokens_per_s(timeline) * tpot_ms(timeline) == pytest.approx(1000)
    assert timeline.merged_tokens == 0


@given(timelines(), st.integers(0, 10**12))
def test_figures_do_not_depend_on_where_the_clock_began(timeline: Timeline, shift: int) -> None:
    moved = dataclasses.replace(
        timeline, sent_ns=timeline.sent_ns + shift, arrivals_ns=tuple(at + shift for at in timeline.arrivals_ns)
    )
    assert ttft_ms(moved) == ttft_ms(timeline)
    assert tpot_ms(moved) == tpot_ms(timeline)
    assert itl_ms(moved) == itl_ms(timeline)
    assert output_tokens_per_s([moved]) == output_tokens_per_s([timeline])


@given(timelines())
def test_tokens_that_come_together_leave_tpot_as_it_is(timeline: Timeline) -> None:
    ends = (timeline.arrivals_ns[0], timeline.arrivals_ns[-1])
    merged = dataclasses.replace(timeline, arrivals_ns=ends)
    assert tpot_ms(merged) == tpot_ms(timeline)
    assert merged.merged_tokens == timeline.output_tokens - 2


@given(st.lists(timelines(), min_size=1, max_size=8))
def test_throughput_of_several_requests_counts_tokens_between_first_request_and_last_arrival(
    requests: list[Timeline],
) -> None:
    instants = [request.sent_ns for request in requests] + [at for request in requests for at in request.arrivals_ns]
    tokens = sum(len(request.arrivals_ns) for request in requests)
    assert output_tokens_per_s(requests) == pytest.approx(tokens / ((max(instants) - min(instants)) / 1e9))


@given(st.lists(FLOATS, min_size=1, max_size=60), st.floats(0, 100))
def test_percentiles_agree_with_numpy(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), rel=1e-9, abs=1e-3)


@given(st.lists(FLOATS, min_size=1), st.floats(0, 100), st.floats(0, 100))
def test_percentiles_ascend_within_the_values(values: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert min(values) <= percentile(values, low) <= percentile(values, high) <= max(values)


def test_percentiles_at_the_ends_are_the_least_and_the_greatest() -> None:
    assert percentile([3, 1, 2], 0) == 1
    assert percentile([3, 1, 2], 100) == 3
    assert percentile([1, 2], 50) == 1.5


@given(st.lists(FLOATS, min_size=1))
def test_a_spread_keeps_the_order_and_quotes_the_median(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.values == tuple(values)
    assert spread.min <= spread.median <= spread.max
    assert spread.median == pytest.approx(float(np.median(values)))


def test_noise_is_half_the_range_over_the_median() -> None:
    assert Spread.of([9, 10, 11]).noise == pytest.approx(0.1)
    assert Spread.of([5]).noise == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"sent_ns": 0, "arrivals_ns": (), "output_tokens": 1}, "no token"),
        ({"sent_ns": 5, "arrivals_ns": (4,), "output_tokens": 1}, "ascend"),
        ({"sent_ns": 0, "arrivals_ns": (2, 1), "output_tokens": 2}, "ascend"),
        ({"sent_ns": 0, "arrivals_ns": (1,), "output_tokens": 0}, "at least one output token"),
    ],
)
def test_a_timeline_that_cannot_be_is_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Timeline(prompt_tokens=1, **arguments)  # type: ignore[arg-type]


def test_figures_that_need_more_than_there_is_are_refused() -> None:
    with pytest.raises(ValueError, match="two output tokens"):
        tpot_ms(Timeline(0, (1,), 1, 1))
    with pytest.raises(ValueError, match="at least one request"):
        output_tokens_per_s([])
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1], 101)


def test_a_clock_that_did_not_move_gives_infinite_rates_not_an_error() -> None:
    at_once = Timeline(7, (7, 7), 3, 2)
    assert math.isinf(decode_tokens_per_s(at_once))
    assert math.isinf(prefill_tokens_per_s(at_once))
    assert math.isinf(output_tokens_per_s([at_once]))


def test_every_kind_of_figure_has_its_formula() -> None:
    assert {"TTFT", "TPOT", "ITL", "MBU", "MFU", "output tokens/s"} <= FORMULAS.keys()
