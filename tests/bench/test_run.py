"""A whole run: turns, ceilings between them, peers present and missing, goals, and a report that can be kept."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from metainfer.bench.ceiling import CeilingMeter
from metainfer.bench.engine_subject import EngineSubject
from metainfer.bench.figures import FIGURES
from metainfer.bench.goals import judge_goals
from metainfer.bench.metrics import FORMULAS, Spread, Timeline
from metainfer.bench.peers.transformers_peer import TransformersPeer
from metainfer.bench.prompts import PromptMaker
from metainfer.bench.render import json_line, render
from metainfer.bench.report import BenchReport, BenchSettings, Missing, SubjectReport
from metainfer.bench.run import run_bench
from metainfer.bench.servers import subprocess_env, tcp_launcher
from metainfer.bench.subject import SubjectError, SubjectInfo, brief
from metainfer.spec.models import Goals
from tests.bench.conftest import VOCAB, model_facts

SERVER = Path(__file__).with_name("scripted_server.py")
METER = functools.partial(CeilingMeter, stream_bytes=1 << 16, shapes=[(8, 8, 8)])
# So many tokens that on a busy machine not all of them arrive in one read, which would leave no gap to measure.
SETTINGS = BenchSettings(
    decode_prompt=20, decode_tokens=48, prefill_prompt=40, clients=3, load_prompt=16, load_tokens=4, threads=1
)


class Scripted:
    """A subject of this process with gaps of `token_ms`; `log` gets every call of `run`."""

    def __init__(
        self,
        name: str,
        log: list[tuple[str, tuple[int, ...], int]],
        *,
        kind: Literal["engine", "peer"] = "peer",
        token_ms: int = 10,
        fails_at: int | None = None,
        starts: bool = True,
        pid_when_stopped: bool = True,
    ) -> None:
        self.name = name
        self.kind = kind
        self.concurrent = kind == "engine"
        self.running = False
        self._log = log
        self._token_ns = token_ms * 1_000_000
        self._fails_at = fails_at
        self._starts = starts
        self._pid_when_stopped = pid_when_stopped
        self._runs = 0

    def start(self) -> None:
        if not self._starts:
            raise SubjectError("no such package")
        self.running = True

    def run(self, prompt_token_ids: Sequence[int], max_new_tokens: int) -> Timeline:
        self._runs += 1
        if self._runs == self._fails_at:
            raise SubjectError("broke down")
        self._log.append((self.name, tuple(prompt_token_ids), max_new_tokens))
        instants = tuple(self._token_ns * (place + 1) for place in range(max_new_tokens))
        tokens = tuple(range(max_new_tokens))
        return Timeline(0, instants, len(prompt_token_ids), max_new_tokens, token_ids=tokens)

    def info(self) -> SubjectInfo:
        return SubjectInfo(
            name=self.name,
            kind=self.kind,
            version="1",
            weight_dtype="fp32",
            kv_dtype="fp32",
            threads=1,
            mode="scripted",
        )

    @property
    def pid(self) -> int:
        if not self.running and not self._pid_when_stopped:
            raise SubjectError("not started")
        return os.getpid()

    def stop(self) -> None:
        self.running = False


def bench(engine: Any, *peers: Any, folder: Path, settings: BenchSettings = SETTINGS, **more: Any) -> BenchReport:
    prompts = PromptMaker(folder, VOCAB, settings.seed)
    return run_bench(engine, peers, model=model_facts(), prompts=prompts, settings=settings, meter=METER, **more)


@pytest.fixture(scope="module")
def scripted_server() -> Iterator[EngineSubject]:
    def command(port: int) -> Sequence[str]:
        return [sys.executable, str(SERVER), "--port", str(port), "--token-s", "0.002"]

    subject = EngineSubject("scripted-engine", tcp_launcher(command, env=subprocess_env(1)), threads=1)
    yield subject
    subject.stop()


@pytest.fixture(scope="module")
def real_report(scripted_server: EngineSubject, tiny_model: Path) -> BenchReport:
    """A scripted HTTP server beside the real transformers worker, three repeats."""
    peer = TransformersPeer(tiny_model, threads=1, probe_prompt=[1, 2, 3], dtype="fp32")
    return bench(scripted_server, peer, folder=tiny_model, goals={"decode_tpot_ms": 1e6, "decode_mbu": 1e6})


def test_a_real_run_reports_every_figure_with_its_spread(real_report: BenchReport) -> None:
    engine, peer = real_report.subjects
    assert engine.figures.keys() == FIGURES.keys()
    assert {name for name in FIGURES if not name.startswith("load_")} == peer.figures.keys()
    for subject in real_report.subjects:
        assert all(len(spread.values) == 3 for spread in subject.figures.values())
        assert subject.memory is not None
        assert subject.memory.peak_rss_bytes > subject.memory.private_bytes > 0
    assert real_report.repeats_done == 3
    assert len(real_report.ceilings) == 1 + 2 * 3
    assert real_report.missing == ()


def test_a_real_run_pairs_and_compares(real_report: BenchReport) -> None:
    assert [(ratio.figure, ratio.peer) for ratio in real_report.ratios] == [
        ("decode_tokens_per_s", "transformers"),
        ("prefill_tokens_per_s", "transformers"),
    ]
    engine, peer = (subject.figures["decode_tokens_per_s"].values for subject in real_report.subjects)
    assert real_report.ratios[0].ratio.values == tuple(a / b for a, b in zip(engine, peer, strict=True))
    (agreement,) = real_report.agreements
    assert agreement.tokens == SETTINGS.decode_tokens
    assert len(agreement.prefixes) == 3
    assert max(agreement.prefixes) < SETTINGS.decode_tokens  # the script's words are not what the model says


def test_goals_are_met_or_not_by_the_median(real_report: BenchReport) -> None:
    slow, fast = real_report.goals
    assert (slow.goal, slow.met, slow.at_least) == ("decode_tpot_ms", True, False)
    assert (fast.goal, fast.met, fast.at_least) == ("decode_mbu", False, True)
    assert fast.measured == real_report.subjects[0].figures["decode_mbu"].median


def test_a_report_survives_being_kept(real_report: BenchReport) -> None:
    kept = json.loads(json_line(real_report))
    assert kept["schema"] == "metainfer/bench/v1"
    assert BenchReport.model_validate(kept) == real_report


def test_the_text_shows_figures_formulas_and_ends_with_json(real_report: BenchReport) -> None:
    lines = render(real_report).splitlines()
    text = "\n".join(lines)
    assert BenchReport.model_validate_json(lines[-1]) == real_report
    assert all(name in text and formula in text for name, formula in FORMULAS.items())
    assert "decode: scripted-engine / transformers" in text
    assert "Ceilings, 7 readings" in text


def test_subjects_take_turns_with_the_same_prompts_and_none_twice(tmp_path: Path) -> None:
    log: list[tuple[str, tuple[int, ...], int]] = []
    bench(Scripted("a", log, kind="engine"), Scripted("b", log), folder=tmp_path)
    measured = [(name, prompt) for name, prompt, tokens in log if tokens == SETTINGS.decode_tokens]
    turns = measured[-6:]
    assert [name for name, _ in turns] == ["a", "b"] * 3
    assert all(ours == theirs for (_, ours), (_, theirs) in zip(turns[::2], turns[1::2], strict=True))
    for name in ("a", "b"):
        prompts = [prompt for subject, prompt, _ in log if subject == name]
        assert len(set(prompts)) == len(prompts)


def test_every_subject_is_warmed_up_before_anything_is_measured(tmp_path: Path) -> None:
    log: list[tuple[str, tuple[int, ...], int]] = []
    report = bench(Scripted("a", log, kind="engine"), Scripted("b", log), folder=tmp_path)
    # a: decode, prefill and three clients; b: decode and prefill
    assert [name for name, _, _ in log[:7]] == ["a"] * 5 + ["b"] * 2
    per_turn = {"a": 5, "b": 2}
    for name, runs in per_turn.items():
        assert len([entry for entry in log if entry[0] == name]) == runs * (1 + report.repeats_done)


def test_figures_of_known_instants(tmp_path: Path) -> None:
    report = bench(Scripted("a", [], kind="engine", token_ms=10), Scripted("b", [], token_ms=40), folder=tmp_path)
    engine = report.subjects[0].figures
    assert engine["decode_tpot_ms"].values == (10, 10, 10)
    assert engine["decode_tokens_per_s"].median == 100
    assert engine["prefill_ttft_ms"].median == 10
    assert engine["prefill_tokens_per_s"].median == pytest.approx(4000)
    assert engine["load_output_tokens_per_s"].median == pytest.approx(3 * 4 / 0.04)
    assert [ratio.ratio.median for ratio in report.ratios] == pytest.approx([4, 4])
    assert report.agreements[0].prefixes == (SETTINGS.decode_tokens,) * 3


def test_a_peer_that_does_not_start_is_reported(tmp_path: Path) -> None:
    given = Missing(name="other", reason="the package other is not installed")
    peer = Scripted("b", [], starts=False)
    report = bench(Scripted("a", [], kind="engine"), peer, folder=tmp_path, missing=[given])
    assert report.missing == (given, Missing(name="b", reason="no such package"))
    assert [subject.info.name for subject in report.subjects] == ["a"]
    assert "MISSING b: no such package" in render(report)


def test_the_reason_of_a_missing_peer_is_short_and_names_no_home() -> None:
    log = "\n".join(["the worker ended:", *["  File x, line 1"] * 50, f"OSError: {Path.home()}/models/a: no such file"])
    assert brief(log) == "the worker ended: … OSError: ~/models/a: no such file"
    assert brief("one line") == "one line"
    assert len(brief("x" * 10_000)) == 400


def test_a_peer_that_breaks_down_midway_is_out_and_stopped(tmp_path: Path) -> None:
    engine, peer = Scripted("a", [], kind="engine"), Scripted("b", [], fails_at=5)
    report = bench(engine, peer, folder=tmp_path)
    assert report.missing == (Missing(name="b", reason="broke down"),)
    assert report.repeats_done == 3
    assert report.ratios == ()
    assert not peer.running
    assert not engine.running


def test_an_engine_that_breaks_down_ends_the_run_and_leaves_nothing_running(tmp_path: Path) -> None:
    engine, peer = Scripted("a", [], kind="engine", fails_at=8), Scripted("b", [])
    with pytest.raises(SubjectError, match="broke down"):
        bench(engine, peer, folder=tmp_path)
    assert not engine.running
    assert not peer.running


def test_a_spent_budget_ends_the_run_after_whole_repeats_and_says_so(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"repeats": 50, "budget_s": 1e-6})
    report = bench(Scripted("a", [], kind="engine"), folder=tmp_path, settings=settings)
    assert report.repeats_done == 1
    assert any("after 1 of 50 repeats" in warning for warning in report.warnings)


def test_a_peer_whose_first_turn_would_not_fit_the_budget_is_left_out_with_the_arithmetic(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"budget_s": 60.0})
    slow = Scripted("slow", [], token_ms=20_000)  # six tokens and a first one: more than two minutes
    quick = Scripted("quick", [])
    report = bench(Scripted("a", [], kind="engine"), slow, quick, folder=tmp_path, settings=settings)
    assert [subject.info.name for subject in report.subjects] == ["a", "quick"]
    (missing,) = report.missing
    assert missing.name == "slow"
    assert "budget of 60 s" in missing.reason
    assert "larger budget" in missing.reason
    assert not slow.running


def test_a_peer_that_breaks_down_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    log: list[tuple[str, tuple[int, ...], int]] = []
    peers = Scripted("b", log, fails_at=3, pid_when_stopped=False), Scripted("c", log)
    report = bench(Scripted("a", log, kind="engine"), *peers, folder=tmp_path)
    assert [subject.info.name for subject in report.subjects] == ["a", "c"]
    assert [missing.name for missing in report.missing] == ["b"]


def test_a_goal_without_a_figure_is_not_met(tmp_path: Path) -> None:
    goals = {"decode_over_vllm": 1.0, "no_such_goal": 1.0, "peak_rss_mb": 1e9}
    report = bench(Scripted("a", [], kind="engine"), folder=tmp_path, goals=goals)
    vllm, unknown, memory = report.goals
    assert (vllm.met, vllm.measured, vllm.note) == (False, None, "not measured in this run")
    assert not unknown.met
    assert "no figure of this name" in unknown.note
    assert memory.met
    assert memory.measured is not None


def test_a_goal_against_a_peer_is_held_against_the_ratio(real_report: BenchReport) -> None:
    engine, ratios = real_report.subjects[0], real_report.ratios
    met, missed = judge_goals({"decode_over_transformers": 0.0, "prefill_over_transformers": 1e9}, engine, ratios)
    assert (met.measured, met.met, met.at_least) == (ratios[0].ratio.median, True, True)
    assert (missed.measured, missed.met) == (ratios[1].ratio.median, False)


def test_every_goal_of_a_spec_has_its_figure(real_report: BenchReport) -> None:
    goals = dict.fromkeys(Goals.model_fields, 0.5)
    for result in judge_goals(goals, real_report.subjects[0], real_report.ratios):
        assert result.measured is not None, result
        assert result.at_least == (result.goal == "decode_mbu")


def test_a_tail_goal_looks_at_the_slow_repeats() -> None:
    figures = {"prefill_ttft_ms": Spread.of([100, 200, 300])}
    subject = SubjectReport(info=Scripted("a", []).info(), start_s=0, figures=figures, memory=None)
    (result,) = judge_goals({"ttft_ms_p95": 280}, subject, ())
    assert result.measured == pytest.approx(290)
    assert not result.met
    assert "3 repeats" in result.note


def test_settings_shrink_to_what_an_engine_can_serve() -> None:
    for max_model_len in (3, 16, 100, 4096):
        settings = BenchSettings(threads=1).within(max_model_len, 2)
        assert settings.clients == 2
        assert settings.decode_prompt + settings.decode_tokens <= max_model_len
        assert settings.prefill_prompt + 2 <= max_model_len
        assert settings.load_prompt + settings.load_tokens <= max_model_len
    assert BenchSettings(threads=1).within(4096, 16) == BenchSettings(threads=1)
