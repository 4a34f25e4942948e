"""Bytes and operations per token, held against what transformers holds and torch counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from metainfer.bench import cost
from metainfer.bench.peers.transformers_worker import cache_argument
from tests.bench.conftest import SHAPE, model_facts, tiny_config

DEMO = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def qwen2(**changes: Any) -> Any:
    from transformers import Qwen2ForCausalLM

    # Eager attention is plain products, which the counter knows.
    return Qwen2ForCausalLM._from_config(tiny_config(**changes), attn_implementation="eager").eval()


def qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = SHAPE | {"head_dim": 16, "tie_word_embeddings": False, "max_position_embeddings": 512}
    return Qwen3ForCausalLM._from_config(Qwen3Config(**shape), attn_implementation="eager").eval()


def counted_flops(model: Any, token_ids: list[int], cache: dict[str, Any]) -> int:
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.tensor([token_ids]), use_cache=True, logits_to_keep=1, **cache)
    return counter.get_total_flops()


@pytest.mark.parametrize("tied", [False, True])
def test_weights_read_per_token_are_all_weights_but_the_embedding_rows_not_looked_up(tied: bool) -> None:
    model = qwen2(tie_word_embeddings=tied)
    held = sum(weight.numel() for weight in model.parameters())  # a tied matrix is listed once
    unread = 0 if tied else (SHAPE["vocab_size"] - 1) * SHAPE["hidden_size"]
    assert cost.weights_per_token(model_facts(tie_word_embeddings=tied)) == held - unread


def test_weights_of_a_model_with_wide_heads_and_their_norms() -> None:
    model = qwen3()
    held = sum(weight.numel() for weight in model.parameters())
    facts = model_facts(head_dim=16, attention_bias=False, qk_norm=True)
    assert cost.weights_per_token(facts) == held - (SHAPE["vocab_size"] - 1) * SHAPE["hidden_size"]


def test_the_demo_model_reads_a_gigabyte_per_token_in_bf16() -> None:
    facts = model_facts(**DEMO)
    assert cost.decode_bytes_per_token(facts, context=0, weight_bytes=2, kv_bytes=4) == pytest.approx(0.99e9, rel=0.01)


def test_kv_values_are_what_the_cache_of_transformers_holds() -> None:
    model = qwen2()
    counted_flops(model, [1, 2, 3, 4, 5], cache := cache_argument(model))
    held = sum(layer.keys.numel() + layer.values.numel() for layer in next(iter(cache.values())).layers)
    assert cost.kv_values_per_token(model_facts()) * 5 == held


@pytest.mark.parametrize(
    ("make", "changes"), [(qwen2, {}), (qwen3, {"head_dim": 16, "attention_bias": False, "qk_norm": True})]
)
def test_operations_are_those_that_torch_counts(make: Any, changes: dict[str, Any]) -> None:
    model, facts = make(), model_facts(**changes)
    prompt = [5, 9, 2, 7, 1, 4, 8]
    tokens = len(prompt)
    counted = counted_flops(model, prompt, cache := cache_argument(model))
    # The eager product covers the upper triangle too, which causal attention does not need.
    upper = cost.attention_flops_per_pair(facts) * (tokens * tokens - tokens * (tokens + 1) // 2)
    assert cost.prefill_flops(facts, tokens) == counted - upper
    counted = counted_flops(model, [3], cache)
    assert cost.decode_flops_per_token(facts, tokens + 1) == counted


@given(st.integers(1, 300), st.integers(2, 300))
def test_the_mean_context_is_the_mean_over_decode_steps(prompt: int, output: int) -> None:
    contexts = [prompt + step for step in range(1, output)]
    assert cost.mean_decode_context(prompt, output) == pytest.approx(sum(contexts) / len(contexts))


@given(st.integers(1, 200))
def test_a_prefill_costs_its_tokens_one_by_one_less_the_heads_it_leaves_out(tokens: int) -> None:
    facts = model_facts()
    one_by_one = sum(cost.decode_flops_per_token(facts, context) for context in range(1, tokens + 1))
    assert cost.prefill_flops(facts, tokens) == one_by_one - (tokens - 1) * 2 * cost.head_weights(facts)


@given(st.floats(0, 1e5), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_bytes_grow_by_one_token_of_cache_per_token_of_context(
    context: float, weight_bytes: int, kv_bytes: int
) -> None:
    def read(length: float) -> float:
        return cost.decode_bytes_per_token(model_facts(), context=length, weight_bytes=weight_bytes, kv_bytes=kv_bytes)

    # 2 layers x 2 KV heads x 8 wide x (key and value)
    assert read(context + 1) - read(context) == pytest.approx(64 * kv_bytes)
    assert read(0) == cost.weights_per_token(model_facts()) * weight_bytes
