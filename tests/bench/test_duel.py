"""When a new engine counts as faster: by more than the old one differs from itself, and in every cycle."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from metainfer.bench.duel import Duel, Metric, take_turns
from metainfer.bench.engine_subject import EngineSubject
from metainfer.bench.prompts import PromptMaker
from metainfer.bench.report import BenchSettings
from metainfer.bench.servers import subprocess_env, tcp_launcher
from tests.bench.conftest import VOCAB

SPEEDS = st.floats(1e-3, 1e6)
FACTORS = st.floats(1.0, 100.0)


@st.composite
def cycles(draw: st.DrawFn) -> tuple[list[float], list[float], list[float]]:
    """Speeds of three processes in one to eight cycles."""
    count = draw(st.integers(1, 8))
    some = st.lists(SPEEDS, min_size=count, max_size=count)
    return draw(some), draw(some), draw(some)


def duel(old: list[float], twin: list[float], new: list[float]) -> Duel:
    return Duel(metric="latency", old=tuple(old), twin=tuple(twin), new=tuple(new))


def test_a_verdict_worked_out_by_hand() -> None:
    """Noise 110/100 = 1.1; ratios 120/sqrt(100*100) = 1.2 and 150/sqrt(100*110) = 1.43."""
    won = duel([100, 110], [100, 100], [120, 150])
    assert won.noise == pytest.approx(1.1)
    assert won.ratios == pytest.approx([1.2, 1.4302], abs=1e-4)
    assert won.ratio == pytest.approx(1.3151, abs=1e-4)
    assert won.won
    assert not duel([100, 110], [100, 100], [109, 150]).won  # 1.09 in one cycle is within the noise of the other


@pytest.mark.parametrize("new", [[100.0, 100.0], [99.0, 200.0], [100.0, 1e9]])
def test_as_fast_in_one_cycle_is_no_win_whatever_the_others_say(new: list[float]) -> None:
    assert not duel([100, 100], [100, 100], new).won


@given(cycles())
def test_an_engine_never_wins_against_itself(speeds: tuple[list[float], ...]) -> None:
    old, twin, _ = speeds
    assert not duel(old, twin, old).won
    assert not duel(old, twin, twin).won


@given(cycles())
def test_of_three_engines_at_most_one_can_win_against_the_two_others(speeds: tuple[list[float], ...]) -> None:
    """So of three that are alike, each wins with a chance of a third per cycle at most."""
    a, b, c = speeds
    verdicts = [duel(a, b, c).won, duel(b, c, a).won, duel(c, a, b).won]
    assert sum(verdicts) <= 1


@given(cycles())
def test_who_wins_was_the_fastest_in_every_cycle(speeds: tuple[list[float], ...]) -> None:
    old, twin, new = speeds
    if duel(old, twin, new).won:
        assert all(c > max(a, b) for a, b, c in zip(old, twin, new, strict=True))


@given(cycles(), FACTORS)
def test_more_speed_never_loses_a_win_and_more_noise_never_makes_one(
    speeds: tuple[list[float], ...], factor: float
) -> None:
    old, twin, new = speeds
    if duel(old, twin, new).won:
        assert duel(old, twin, [speed * factor for speed in new]).won
    apart = [max(a, b) * factor for a, b in zip(old, twin, strict=True)]
    if not duel(old, twin, new).won:
        assert not duel(apart, [min(a, b) for a, b in zip(old, twin, strict=True)], new).won


@given(cycles(), st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_unit_of_speed_does_not_matter(speeds: tuple[list[float], ...], unit: float) -> None:
    old, twin, new = ([speed * unit for speed in one] for one in speeds)
    assert duel(old, twin, new).ratios == pytest.approx(duel(*speeds).ratios)
    assert duel(old, twin, new).noise == pytest.approx(duel(*speeds).noise)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_speed_is_refused(speed: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        duel([100.0], [100.0], [speed])


def test_every_engine_has_a_speed_in_every_cycle() -> None:
    with pytest.raises(ValidationError, match="one speed per cycle"):
        duel([100.0, 100.0], [100.0, 100.0], [100.0])


SERVER = Path(__file__).with_name("scripted_server.py")


def server(name: str, first_s: float, token_s: float) -> EngineSubject:
    """A real HTTP server that sleeps before the first token, and after each."""

    def command(port: int) -> Sequence[str]:
        waits = ["--first-s", str(first_s), "--token-s", str(token_s)]
        return [sys.executable, str(SERVER), "--port", str(port), *waits]

    return EngineSubject(name, tcp_launcher(command, env=subprocess_env(1)), threads=1)


@pytest.mark.parametrize(
    ("metric", "first_s", "token_s", "wins"),
    [
        pytest.param("latency", 0.0, 0.002, True, id="quicker"),
        pytest.param("throughput", 0.0, 0.002, True, id="quicker under load", marks=pytest.mark.slow),
        pytest.param("latency", 0.0, 0.05, False, id="slower", marks=pytest.mark.slow),
        pytest.param("latency", 0.8, 0.0, False, id="late and all at once", marks=pytest.mark.slow),
    ],
)
def test_servers_that_take_turns(tmp_path: Path, metric: Metric, first_s: float, token_s: float, wins: bool) -> None:
    """The old server takes 8 x 40 ms for an answer. One that sends all of it at once after 800 ms has the best TPOT."""
    settings = BenchSettings(decode_prompt=8, decode_tokens=8, clients=2, load_prompt=8, load_tokens=8, threads=1)
    subjects = [server("old", 0.0, 0.04), server("twin", 0.0, 0.04), server("new", first_s, token_s)]
    with ExitStack() as stack:
        for subject in subjects:
            stack.callback(subject.stop)
            subject.start()
        made = take_turns(subjects, PromptMaker(tmp_path, VOCAB, 0), settings, metric, cycles=2)
    assert made.won is wins, str(made)
