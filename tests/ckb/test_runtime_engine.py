"""Whole engines for tiny random models: their tokens against transformers, alone, in company, and from a warm cache."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from metainfer.checkpoint.facts import read_facts
from metainfer.checkpoint.random_model import make_random_model
from metainfer.ckb.checks import Candidate, load_candidate
from metainfer.ckb.facts import SERVING_FEATURES, Facts
from metainfer.files import folder_digest
from metainfer.generate.scratch import assemble_scratch

CKB = Path(__file__).parents[2] / "ckb"
SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
KINDS: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": False, "dtype": "bfloat16"},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 24, "dtype": "float32"},
}
MAX_MODEL_LEN = 256
NEAR_TIE = 1e-3
"""Where the reference's two best logits are closer than this, either token is right and the comparison ends."""


@dataclass
class Tiny:
    """A random model's folder and the engine made for it."""

    folder: Path
    engine_dir: Path
    engine: Candidate

    def load(self, **options: Any) -> Any:
        """A running LLMEngine, single-threaded."""
        options = {"num_threads": 1} | options
        return self.engine.unit("LLMEngine")(self.folder, **options)

    def params(self, **params: Any) -> Any:
        return self.engine.unit("SamplingParams")(**({"temperature": 0.0, "max_tokens": 24} | params))

    @property
    def package(self) -> str:
        return self.engine.package.__name__

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", self.package, *arguments]


def make_tiny(kind: str, root: Path) -> Tiny:
    """Make model and engine below `root`, with every serving feature."""
    folder, out, checks = root / "model", root / "engine", root / "checks"
    for new in (folder, checks):
        new.mkdir()
    make_random_model(SHAPE | KINDS[kind], 3, folder)
    model = read_facts(folder)
    facts = Facts(
        architecture=kind,
        attention_bias=model.attention_bias,
        qk_norm=model.qk_norm,
        tied_embeddings=model.tie_word_embeddings,
        sharded=model.sharded,
        has_chat_template=model.has_chat_template,
        platform="cpu-x86-avx2",
        weight_dtype="bf16" if KINDS[kind]["dtype"] == "bfloat16" else "fp32",
        activation_dtype="fp32",
        kv_dtype="fp32",
        optimise="latency",
        **dict.fromkeys(SERVING_FEATURES, True),
    )
    assemble_scratch(
        CKB,
        facts,
        model,
        out,
        folded=True,
        name=f"runtime-{kind}",
        digest=folder_digest(folder),
        max_model_len=MAX_MODEL_LEN,
        max_concurrency=4,
    )
    return Tiny(folder, out, load_candidate(out, checks))


@pytest.fixture(scope="module", autouse=True)
def _own_kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        if "METAINFER_KERNELS" not in os.environ:
            patch.setenv("METAINFER_KERNELS", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.fixture(scope="module", params=list(KINDS))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(request.param, tmp_path_factory.mktemp(f"runtime-{request.param}"))


@pytest.fixture(scope="module")
def reference(tiny: Tiny) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(tiny.folder, dtype=torch.float32).eval()


def _prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{length}:{seed}")
    return [rng.randrange(256) for _ in range(length)]


def assert_is_the_references(reference: Any, seq: Any) -> None:
    """Every generated token is the reference's argmax after all tokens before it, up to a near tie."""
    with torch.no_grad():
        logits = reference(torch.tensor([seq.token_ids])).logits[0].double()
    for position in range(seq.num_prompt_tokens, seq.num_tokens):
        best = logits[position - 1].topk(2)
        if float(best.values[0] - best.values[1]) < NEAR_TIE:
            return
        assert seq.token_ids[position] == int(best.indices[0]), f"token {position} of {seq.num_tokens}"


def test_answers_of_a_mixed_batch_are_those_of_transformers(tiny: Tiny, reference: Any) -> None:
    engine = tiny.load(prefill_chunk=20)
    lengths = (1, 15, 16, 17, 33, 100, 19, 64)
    for seq in engine.generate([_prompt(n) for n in lengths], tiny.params(ignore_eos=True)):
        assert seq.num_generated == 24
        assert_is_the_references(reference, seq)
    assert engine.block_manager.num_used == 0


def test_a_prompt_from_the_prefix_cache_gets_the_same_answer(tiny: Tiny, reference: Any) -> None:
    engine = tiny.load()
    prompt = _prompt(70)
    cold, warm = (engine.generate([prompt], tiny.params(ignore_eos=True))[0] for _ in range(2))
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 64)
    assert_is_the_references(reference, warm)
    longer = engine.generate([cold.token_ids[:90]], tiny.params(ignore_eos=True))[0]
    assert longer.num_cached_tokens == 80, "answers are shared as well as prompts"
    assert_is_the_references(reference, longer)


def test_answers_survive_eviction(tiny: Tiny, reference: Any) -> None:
    engine = tiny.load(num_kv_blocks=MAX_MODEL_LEN // 16, max_concurrency=2, prefill_chunk=32)
    prompts = [_prompt(60, seed=n % 3) for n in range(9)]
    for seq in engine.generate(prompts, tiny.params(max_tokens=30, ignore_eos=True)):
        assert_is_the_references(reference, seq)
    assert engine.block_manager.num_free + engine.block_manager.num_cached == MAX_MODEL_LEN // 16


def test_a_seeded_answer_is_the_same_alone_and_in_company(tiny: Tiny) -> None:
    params = tiny.params(temperature=1.0, top_p=0.95, seed=11, ignore_eos=True)
    alone = tiny.load().generate([_prompt(20)], params)[0].generated_token_ids
    engine = tiny.load()
    company = [engine.add_request(_prompt(n, seed=1), tiny.params(temperature=1.3)) for n in (5, 40, 90)]
    seeded = engine.add_request(_prompt(20), params)
    while engine.has_work:
        engine.step()
    assert seeded.generated_token_ids == alone
    assert all(seq.finish_reason for seq in company)
    other = tiny.load().generate([_prompt(20)], tiny.params(temperature=1.0, top_p=0.95, seed=12, ignore_eos=True))[0]
    assert other.generated_token_ids != alone


def test_logprobs_are_those_of_transformers(tiny: Tiny, reference: Any) -> None:
    engine = tiny.load()
    seq = engine.add_request(
        _prompt(30), tiny.params(max_tokens=8, temperature=0.7, seed=1, logprobs=3, ignore_eos=True)
    )
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    with torch.no_grad():
        expected = reference(torch.tensor([seq.token_ids])).logits[0].double().log_softmax(dim=-1)
    for position, output in enumerate(outputs, start=seq.num_prompt_tokens):
        row = expected[position - 1]
        assert output.token.logprob == pytest.approx(float(row[output.token.token_id]), abs=1e-3)
        assert [value for _, value in output.token.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-3)


def test_an_aborted_request_leaves_no_trace(tiny: Tiny, reference: Any) -> None:
    engine = tiny.load(prefill_chunk=16)
    victim = engine.add_request(_prompt(100), tiny.params())
    engine.step()
    engine.abort(victim.seq_id)
    engine.abort(victim.seq_id)
    assert victim.finish_reason == "abort"
    assert engine.block_manager.num_used == 0
    assert_is_the_references(reference, engine.generate([_prompt(100)], tiny.params(ignore_eos=True))[0])


def test_a_model_that_is_not_the_specs_is_refused(tiny: Tiny) -> None:
    with pytest.raises(Exception, match=r"digest|sha256"):
        tiny.load(expected_digest="sha256:" + "1" * 64)
