"""The compute half of an engine, folded for tiny models saved by transformers: its logits against theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from metainfer.checkpoint.facts import read_facts
from metainfer.ckb.checks import Candidate, load_candidate, run_checks
from metainfer.ckb.facts import SERVING_FEATURES, Facts
from metainfer.files import folder_digest
from metainfer.generate.scratch import assemble_scratch

CKB = Path(__file__).parents[2] / "ckb"
SHAPE = {
    "vocab_size": 331,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
}
KINDS = {
    "qwen2-bf16": ("qwen2", "bf16", {"tie_word_embeddings": False}, True),
    "qwen2-fp32": ("qwen2", "fp32", {"tie_word_embeddings": True}, False),
    "qwen3-bf16": ("qwen3", "bf16", {"tie_word_embeddings": True, "head_dim": 16}, False),
    "qwen3-fp32": ("qwen3", "fp32", {"tie_word_embeddings": False, "head_dim": 16}, True),
}
"""Engine to architecture, dtype of the weights, what else its configuration says, and whether its file is in shards."""
TOLERANCE = 2e-5
"""Of logits between -6 and 6; transformers' own attention variants differ by as much."""


@dataclass
class Tiny:
    """A random checkpoint in a folder, the same in transformers (fp32), and the engine made for it."""

    folder: Path
    reference: Any
    engine: Candidate

    def load(self) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = self.engine.unit("load_weights")(self.folder, folder_digest(self.folder))
        return weights

    def model(self, weights: dict[str, Tensor] | None = None) -> Any:
        """A fresh engine model; its cache is NaN wherever nothing was written."""
        cache = self.engine.unit("KVCache")(64)
        cache.key.fill_(float("nan"))
        cache.value.fill_(float("nan"))
        return self.engine.unit("CausalLM")(weights or self.load(), cache)

    def step(self, model: Any, *chunks: tuple[list[int], list[int], int, int]) -> Tensor:
        """One step over chunks (token ids so far, block table, start, length)."""
        laid_out = [
            SimpleNamespace(
                seq=SimpleNamespace(token_ids=ids, block_table=table, num_tokens=len(ids)),
                start=start,
                length=length,
                samples=start + length == len(ids),
            )
            for ids, table, start, length in chunks
        ]
        logits: Tensor = model.forward(self.engine.unit("prepare_batch")(laid_out, self.engine.config.BLOCK_SIZE))
        return logits

    def expected(self, ids: list[int]) -> Tensor:
        """transformers' logits [tokens, vocab]."""
        with torch.no_grad():
            logits: Tensor = self.reference(torch.tensor([ids])).logits[0]
        return logits


@pytest.fixture(scope="module", autouse=True)
def _one_thread_and_own_kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        if "METAINFER_KERNELS" not in os.environ:
            patch.setenv("METAINFER_KERNELS", str(tmp_path_factory.mktemp("kernels")))
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=list(KINDS))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    architecture, dtype, extra, sharded = KINDS[request.param]
    folder = tmp_path_factory.mktemp("model")
    reference = _save_random_model(architecture, dtype, extra, sharded, folder)
    model = read_facts(folder)
    assert model.sharded == sharded
    facts = Facts(
        architecture=architecture,
        attention_bias=model.attention_bias,
        qk_norm=model.qk_norm,
        tied_embeddings=model.tie_word_embeddings,
        sharded=model.sharded,
        has_chat_template=model.has_chat_template,
        platform="cpu-x86-avx2",
        weight_dtype=dtype,
        activation_dtype="fp32",
        kv_dtype="fp32",
        optimise="latency",
        **dict.fromkeys(SERVING_FEATURES, True),
    )
    out = tmp_path_factory.mktemp("engine")
    name = f"compute-{request.param}"
    assemble_scratch(CKB, facts, model, out, folded=True, max_model_len=256, name=name)
    return Tiny(folder, reference, load_candidate(out, tmp_path_factory.mktemp("checks")))


def _save_random_model(architecture: str, dtype: str, extra: dict[str, Any], sharded: bool, folder: Path) -> Any:
    """Every tensor random, norms and biases too, so that none can be left out unnoticed."""
    import transformers

    name = architecture.capitalize()
    config = getattr(transformers, f"{name}Config")(**SHAPE, **extra)
    made = getattr(transformers, f"{name}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in key else 0.15 * noise)
    made.to(torch.bfloat16 if dtype == "bf16" else torch.float32)
    made.save_pretrained(folder, max_shard_size="60KB" if sharded else "1GB")
    # Read back: casting the model rounded its rotary frequencies too, and those are no part of a checkpoint.
    return type(made).from_pretrained(folder, dtype=torch.float32).eval()


def test_the_loader_upholds_its_contract_on_single_files_and_shards(tiny: Tiny) -> None:
    assert run_checks(CKB / "general/weight-loading/check.py", tiny.engine, seeds=[0]) == []


def test_prefill_gives_the_logits_of_transformers(tiny: Tiny) -> None:
    for length in (1, 15, 16, 17, 70):
        ids = _prompt(length)
        assert _difference(tiny.step(tiny.model(), (ids, TABLE, 0, length)), tiny.expected(ids)[-1:]) < TOLERANCE


def test_decode_gives_the_logits_of_transformers_at_every_position(tiny: Tiny) -> None:
    ids, model = _prompt(40), tiny.model()
    logits = [tiny.step(model, (ids[: i + 1], TABLE, i, 1)) for i in range(len(ids))]
    assert _difference(torch.cat(logits), tiny.expected(ids)) < TOLERANCE


def test_decodes_and_chunks_of_other_prompts_share_a_step(tiny: Tiny) -> None:
    first, second, third = _prompt(33), _prompt(50, seed=1), _prompt(16, seed=2)
    other, another = [20, 41, 22, 13], [7, 30]
    model = tiny.model()
    start = tiny.step(model, (first[:-1], TABLE, 0, 32), (second, other, 0, 20))
    assert start.shape[0] == 1, "the second prompt is not at its end: only the first is sampled"
    logits = tiny.step(model, (first, TABLE, 32, 1), (second, other, 20, 30), (third, another, 0, 16))
    expected = torch.stack([tiny.expected(ids)[-1] for ids in (first, second, third)])
    assert _difference(logits, expected) < TOLERANCE


def test_the_hidden_state_after_every_layer_is_that_of_transformers(tiny: Tiny) -> None:
    ids, model, states = _prompt(21), tiny.model(), []
    for layer in model.layers:
        layer.forward = _recorded(layer.forward, states)
    tiny.step(model, (ids, TABLE, 0, len(ids)))
    with torch.no_grad():
        expected = tiny.reference(torch.tensor([ids]), output_hidden_states=True).hidden_states
    # transformers' last entry is after the final norm.
    for got, wanted in zip(states[:-1], expected[1:-1], strict=True):
        assert _difference(got, wanted[0]) < TOLERANCE


def test_each_tensor_of_the_file_moves_both_alike(tiny: Tiny) -> None:
    ids, weights = _prompt(9), tiny.load()
    before = tiny.expected(ids)[-1:]
    parameters = tiny.reference.state_dict(keep_vars=True)
    for name, tensor in weights.items():
        kept = parameters[name].data.clone()
        # bf16 values plus or minus themselves are bf16 again, so both see the same numbers.
        changed = torch.where(torch.arange(tensor.numel()).view(tensor.shape) % 3 == 0, -tensor, tensor)
        parameters[name].data.copy_(changed)
        expected = tiny.expected(ids)[-1:]
        got = tiny.step(tiny.model(weights | {name: changed}), (ids, TABLE, 0, 9))
        parameters[name].data.copy_(kept)
        assert _difference(got, expected) < TOLERANCE, name
        assert _difference(expected, before) > 100 * TOLERANCE, f"{name} has no influence"


def test_chunks_company_and_threads_change_nothing_and_no_bit_with_bf16_weights(tiny: Tiny) -> None:
    ids, neighbour = _prompt(37), _prompt(5, seed=3)
    whole = tiny.step(tiny.model(), (ids, TABLE, 0, 37))[0]
    model = tiny.model()
    tiny.step(model, (ids, TABLE, 0, 11), (neighbour, [50], 0, 5))
    torch.set_num_threads(3)
    tiny.step(model, (neighbour, [51], 0, 5), (ids, TABLE, 11, 25))
    decoded = tiny.step(model, (ids, TABLE, 36, 1))[0]
    torch.set_num_threads(1)
    # With fp32 weights the order of sums is torch's own choice.
    assert _difference(decoded, whole) <= (0.0 if tiny.engine.facts.weight_dtype == "bf16" else TOLERANCE)


TABLE = [9, 3, 60, 28, 1, 17]
"""Blocks in no order; six of them hold the longest prompt here."""


def _prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(SHAPE["vocab_size"], (length,), generator=generator).tolist()
    return ids


def _recorded(forward: Any, states: list[Tensor]) -> Any:
    def recording(*arguments: Any) -> Tensor:
        states.append(forward(*arguments))
        return states[-1]

    return recording


def _difference(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape
    return float((got - expected).abs().nan_to_num(nan=float("inf")).max())
