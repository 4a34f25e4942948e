"""Checks of one attention layer: the whole of it recomputed in float64 without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from metainfer.ckb.checks import Candidate, Finding

TOLERANCE = 2e-5
"""Of the largest output: two projections and a softmax in float32."""


def check_prefill_matches_float64(c: Candidate) -> Iterator[Finding]:
    """Two sequences in one batch, their blocks shuffled."""
    layer = _Layer(c)
    lengths = [c.rng.randrange(2, 20), c.config.BLOCK_SIZE + 1]
    inputs = [layer.input(length) for length in lengths]
    got = layer.run(torch.cat(inputs), [(0, length) for length in lengths])
    expected = torch.cat([layer.expected(x) for x in inputs])
    yield from _compare("check_prefill_matches_float64", f"prefills of {lengths} tokens", got, expected)


def check_cache_carries_the_past(c: Candidate) -> Iterator[Finding]:
    """A prompt in two chunks, then decodes beside another sequence's prefill: as if computed at once."""
    layer = _Layer(c)
    x, other = layer.input(c.config.BLOCK_SIZE + 3), layer.input(5)
    expected, cut = layer.expected(x), c.rng.randrange(1, c.config.BLOCK_SIZE)
    steps: list[tuple[list[Tensor], list[tuple[int, int]]]] = [
        ([x[:cut]], [(0, cut)]),
        ([x[cut:-2]], [(cut, len(x) - 2 - cut)]),
        ([x[-2:-1], other], [(len(x) - 2, 1), (0, 5)]),
        ([x[-1:]], [(len(x) - 1, 1)]),
    ]
    rows = [layer.run(torch.cat(parts), chunks)[: len(parts[0])] for parts, chunks in steps]
    yield from _compare("check_cache_carries_the_past", f"chunks of a {len(x)}-token prompt", torch.cat(rows), expected)


def check_other_layers_are_left_alone(c: Candidate) -> Iterator[Finding]:
    """The layer writes its own part of the cache only."""
    layer = _Layer(c)
    layer.run(layer.input(4), [(0, 4)])
    others = [i for i in range(c.config.NUM_LAYERS) if i != layer.index]
    if not bool(layer.cache.key[others].isnan().all()) or not bool(layer.cache.value[others].isnan().all()):
        yield Finding("check_other_layers_are_left_alone", f"layer {layer.index} wrote into another layer's cache")
    written = int((~layer.cache.key[layer.index].isnan()).sum())
    if written != 4 * c.config.NUM_KV_HEADS * c.config.HEAD_DIM:
        yield Finding(
            "check_other_layers_are_left_alone", "the layer's keys are not in its cache", {"elements": written}
        )


class _Layer:
    """A random attention layer in a poisoned cache, and the same mathematics in float64."""

    def __init__(self, c: Candidate) -> None:
        self.c, self.g = c, c.torch_generator()
        config = c.config
        stored = torch.bfloat16 if c.facts.weight_dtype == "bf16" else torch.float32
        query, kv = config.NUM_HEADS * config.HEAD_DIM, config.NUM_KV_HEADS * config.HEAD_DIM
        sizes = {"q_proj": (query, config.HIDDEN_SIZE), "k_proj": (kv, config.HIDDEN_SIZE)}
        sizes |= {"v_proj": (kv, config.HIDDEN_SIZE), "o_proj": (config.HIDDEN_SIZE, query)}
        self.weights = {
            f"{name}.weight": (torch.randn(size, generator=self.g) / size[1] ** 0.5).to(stored)
            for name, size in sizes.items()
        }
        if c.facts.attention_bias:
            for name in ("q_proj", "k_proj", "v_proj"):
                self.weights[f"{name}.bias"] = torch.randn(sizes[name][0], generator=self.g).to(stored)
        if c.facts.qk_norm:
            for name in ("q_norm", "k_norm"):
                self.weights[f"{name}.weight"] = (torch.rand(config.HEAD_DIM, generator=self.g) + 0.5).to(stored)
        self.cache: Any = c.unit("KVCache")(12)
        self.cache.key.fill_(float("nan")), self.cache.value.fill_(float("nan"))
        self.index = config.NUM_LAYERS - 1
        self.tables = torch.randperm(12, generator=self.g)[:8].view(2, 4).to(torch.int32)
        self.attention = c.unit("Attention")(self.weights, self.cache, self.index)

    def input(self, tokens: int) -> Tensor:
        return torch.randn(tokens, self.c.config.HIDDEN_SIZE, generator=self.g)

    def run(self, x: Tensor, chunks: list[tuple[int, int]]) -> Tensor:
        """Compute chunks (start, length) of up to two sequences."""
        block = self.c.config.BLOCK_SIZE
        positions = torch.cat([torch.arange(start, start + length) for start, length in chunks])
        owners = torch.cat([torch.full((length,), row) for row, (_, length) in enumerate(chunks)])
        batch = self.c.unit("Batch")(
            token_ids=torch.zeros(len(x), dtype=torch.int64),
            positions=positions,
            slot_mapping=self.tables[owners, positions // block].long() * block + positions % block,
            block_tables=self.tables[: len(chunks)].contiguous(),
            query_start=torch.tensor([0, *(length for _, length in chunks)]).cumsum(0).to(torch.int32),
            context_lens=torch.tensor([start + length for start, length in chunks], dtype=torch.int32),
            sample_rows=torch.zeros(0, dtype=torch.int64),
        )
        cos, sin = self.c.unit("rope_tables")(self.c.config.MAX_MODEL_LEN)
        attended: Tensor = self.attention(x, cos[positions], sin[positions], batch)
        return attended

    def expected(self, x: Tensor) -> Tensor:
        """The layer over one whole sequence x [tokens, hidden], head by head."""
        config = self.c.config
        query, key, value = (self._heads(x, name) for name in "qkv")
        if self.c.facts.qk_norm:
            query, key = self._normed(query, "q"), self._normed(key, "k")
        query, key = self._turned(query), self._turned(key)
        future = torch.full((len(x), len(x)), float("-inf"), dtype=torch.float64).triu(1)
        heads = []
        for head in range(config.NUM_HEADS):
            shared = head // (config.NUM_HEADS // config.NUM_KV_HEADS)
            scores = query[:, head] @ key[:, shared].T / config.HEAD_DIM**0.5 + future
            heads.append(scores.softmax(-1) @ value[:, shared])
        return torch.cat(heads, dim=-1) @ self.weights["o_proj.weight"].double().T

    def _heads(self, x: Tensor, name: str) -> Tensor:
        projected = x.double() @ self.weights[f"{name}_proj.weight"].double().T
        if self.c.facts.attention_bias:
            projected = projected + self.weights[f"{name}_proj.bias"].double()
        return projected.view(len(x), -1, self.c.config.HEAD_DIM)

    def _normed(self, heads: Tensor, name: str) -> Tensor:
        size = heads.pow(2).mean(-1, keepdim=True) + self.c.config.RMS_NORM_EPS
        return heads / size.sqrt() * self.weights[f"{name}_norm.weight"].double()

    def _turned(self, heads: Tensor) -> Tensor:
        half = self.c.config.HEAD_DIM // 2
        frequency = torch.tensor([self.c.config.ROPE_THETA ** (-i / half) for i in range(half)], dtype=torch.float64)
        angle = torch.arange(len(heads))[:, None, None] * frequency
        pairs = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((pairs.real, pairs.imag), dim=-1)


def _compare(check: str, what: str, got: Tensor, expected: Tensor) -> Iterator[Finding]:
    if got.shape != expected.shape or got.dtype != torch.float32:
        yield Finding(check, f"{what}: returns {[*got.shape]} {got.dtype}")
        return
    error = (got.double() - expected).abs().nan_to_num(nan=float("inf")).amax(dim=1) / expected.abs().max()
    if not float(error.max()) <= TOLERANCE:
        yield Finding(
            check,
            f"{what}: row {int(error.argmax())} differs from float64",
            {"relative_error": float(error.max()), "tolerance": TOLERANCE},
        )
