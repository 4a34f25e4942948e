"""The whole way: an engine made from the knowledge base, served, measured, and held against a peer."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from metainfer.bench import engine as bench_module
from metainfer.bench.ceiling import CeilingMeter
from metainfer.bench.engine import bench_engine
from metainfer.bench.report import BenchReport, BenchSettings, Missing
from metainfer.checkpoint.facts import ModelFacts, read_facts
from metainfer.ckb.facts import Facts
from metainfer.errors import InputError
from metainfer.files import folder_digest
from metainfer.generate.scratch import assemble_scratch
from metainfer.sandbox import Sandbox

CKB = Path(__file__).parents[2] / "ckb"
METER = functools.partial(CeilingMeter, stream_bytes=1 << 16, shapes=[(8, 8, 8)])
SETTINGS = BenchSettings(
    decode_prompt=20,
    decode_tokens=8,
    prefill_prompt=40,
    clients=2,
    load_prompt=16,
    load_tokens=4,
    repeats=1,
    threads=1,
    budget_s=600,
)


@pytest.fixture(scope="module")
def facts(tiny_model: Path) -> ModelFacts:
    return read_facts(tiny_model)


@pytest.fixture(scope="module")
def tiny_engine(tiny_model: Path, facts: ModelFacts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    deployment = Facts(
        architecture="qwen2",
        attention_bias=True,
        qk_norm=False,
        tied_embeddings=False,
        sharded=False,
        has_chat_template=False,
        platform="cpu-x86-avx2",
        weight_dtype="fp32",
        activation_dtype="fp32",
        kv_dtype="fp32",
        optimise="latency",
        chat=False,
        completions=True,
        streaming=True,
        logprobs=False,
        stop=False,
        seed=False,
    )
    out = tmp_path_factory.mktemp("engine")
    digest = folder_digest(tiny_model)
    return assemble_scratch(CKB, deployment, facts, out, folded=True, digest=digest, max_model_len=128)


@pytest.fixture(scope="module")
def report(tiny_engine: Path, tiny_model: Path, facts: ModelFacts) -> BenchReport:
    sandbox = Sandbox(allow_unsandboxed=True)
    return bench_engine(
        tiny_engine,
        model_dir=tiny_model,
        model=facts,
        settings=SETTINGS,
        sandbox=sandbox,
        goals={"peak_rss_mb": 1e6},
        meter=METER,
    )


def test_an_engine_and_its_peer_are_measured(report: BenchReport) -> None:
    engine, peer = report.subjects
    assert (engine.info.name, engine.info.kind) == ("scratch", "engine")
    assert (peer.info.name, peer.info.kind) == ("transformers", "peer")
    assert engine.memory is not None
    assert "load_output_tokens_per_s" in engine.figures
    assert "probe bf16" in peer.info.mode
    assert report.missing == ()
    assert [goal.met for goal in report.goals] == [True]


def test_the_report_says_whether_a_sandbox_was_around_the_engine(report: BenchReport) -> None:
    sandboxed = Sandbox(allow_unsandboxed=True).isolating
    assert (", sandboxed" in report.subjects[0].info.mode) == sandboxed
    assert (", not sandboxed" in report.subjects[0].info.mode) != sandboxed


def test_engine_and_peer_say_the_same_in_fp32(report: BenchReport) -> None:
    if report.subjects[1].info.weight_dtype == "fp32":
        assert report.agreements[0].prefixes == (SETTINGS.decode_tokens,)
    assert report.agreements[0].tokens == SETTINGS.decode_tokens


def test_a_peer_that_is_not_installed_is_reported_not_skipped(
    tiny_engine: Path, tiny_model: Path, facts: ModelFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module.importlib.util, "find_spec", lambda name: None)
    report = bench_engine(tiny_engine, model_dir=tiny_model, model=facts, settings=SETTINGS, meter=METER)
    assert report.missing == (Missing(name="transformers", reason="the package transformers is not installed"),)
    assert [subject.info.name for subject in report.subjects] == ["scratch"]
    assert "not sandboxed" in report.subjects[0].info.mode


def test_an_unknown_peer_is_refused_before_anything_starts(tmp_path: Path, facts: ModelFacts) -> None:
    with pytest.raises(InputError, match="nosuch is not known; there is transformers"):
        bench_engine(tmp_path, model_dir=tmp_path, model=facts, peers=["nosuch"])
