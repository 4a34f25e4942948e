"""Checks of the decoder: a layer and the whole model recomputed in float64 without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from metainfer.ckb.checks import Candidate, Finding

TOLERANCE = 5e-5
"""Of the largest element: float32 through all layers."""


def check_layer_matches_float64(c: Candidate) -> Iterator[Finding]:
    """One layer on its own: hidden state in, hidden state out, as gates compare them."""
    model = _Model(c)
    index = c.rng.randrange(c.config.NUM_LAYERS)
    x = torch.randn(9, c.config.HIDDEN_SIZE, generator=model.g)
    batch, cos, sin = model.batch([(0, list(range(9)))])
    got = model.engine.layers[index].forward(x, cos, sin, batch)
    yield from _compare("check_layer_matches_float64", f"layer {index}", got, model.layer(x.double(), index))


def check_logits_match_float64(c: Candidate) -> Iterator[Finding]:
    """Two prompts in one batch; logits of the sampled rows only, from embedding to head."""
    model = _Model(c)
    prompts = [model.prompt(c.rng.randrange(2, 12)), model.prompt(c.config.BLOCK_SIZE + 1)]
    batch, *_ = model.batch([(0, prompt) for prompt in prompts])
    got = model.engine.forward(batch)
    expected = torch.cat([model.logits(prompt)[-1:] for prompt in prompts])
    yield from _compare("check_logits_match_float64", f"prompts of {[len(p) for p in prompts]} tokens", got, expected)


def check_steps_agree(c: Candidate) -> Iterator[Finding]:
    """A prompt in two chunks and a decode gives what one prefill gives."""
    model = _Model(c)
    prompt = model.prompt(c.config.BLOCK_SIZE + 4)
    cut = c.rng.randrange(1, c.config.BLOCK_SIZE)
    first, *_ = model.batch([(0, prompt[:cut])], sample=False)
    silent = model.engine.forward(first)
    if silent.shape != (0, c.config.VOCAB_SIZE):
        yield Finding("check_steps_agree", f"a batch without sample rows gives {[*silent.shape]}")
    for start, end in ((cut, len(prompt) - 1), (len(prompt) - 1, len(prompt))):
        batch, *_ = model.batch([(start, prompt[start:end])])
        got = model.engine.forward(batch)
    yield from _compare("check_steps_agree", f"chunks of {cut}, the rest, and a decode", got, model.logits(prompt)[-1:])


class _Model:
    """A random model: big matrices shared by every second layer, so that models of any depth are cheap to make.

    Norms are each layer's own; a layer that reads its neighbour's is noticed.
    """

    def __init__(self, c: Candidate) -> None:
        self.c, self.g = c, c.torch_generator()
        config = c.config
        self.stored = torch.bfloat16 if c.facts.weight_dtype == "bf16" else torch.float32
        self.weights = {
            "model.embed_tokens.weight": self._table(1.0),
            "model.norm.weight": self._norm(config.HIDDEN_SIZE),
        }
        if not c.facts.tied_embeddings:
            self.weights["lm_head.weight"] = self._table(config.HIDDEN_SIZE**-0.5)
        shared = [self._matrices() for _ in range(min(2, config.NUM_LAYERS))]
        for index in range(config.NUM_LAYERS):
            own = {f"{name}_layernorm.weight": self._norm(config.HIDDEN_SIZE) for name in ("input", "post_attention")}
            if c.facts.qk_norm:
                own |= {f"self_attn.{name}_norm.weight": self._norm(config.HEAD_DIM) for name in "qk"}
            layer = shared[index % 2] | own
            self.weights |= {f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()}
        self.tables = torch.randperm(12, generator=self.g)[:8].view(2, 4).to(torch.int32)
        cache: Any = c.unit("KVCache")(12)
        cache.key.fill_(float("nan")), cache.value.fill_(float("nan"))
        self.engine: Any = c.unit("CausalLM")(dict(self.weights), cache)

    def _table(self, scale: float) -> Tensor:
        """[vocab, hidden]; rows repeat far apart, for no random number generator is quick enough for all of them."""
        rows = min(self.c.config.VOCAB_SIZE, 1021)
        part = (torch.randn(rows, self.c.config.HIDDEN_SIZE, generator=self.g) * scale).to(self.stored)
        return part.repeat(-(-self.c.config.VOCAB_SIZE // rows), 1)[: self.c.config.VOCAB_SIZE].contiguous()

    def _norm(self, size: int) -> Tensor:
        return (torch.rand(size, generator=self.g) + 0.5).to(self.stored)

    def _matrices(self) -> dict[str, Tensor]:
        config = self.c.config
        query, kv = config.NUM_HEADS * config.HEAD_DIM, config.NUM_KV_HEADS * config.HEAD_DIM
        hidden, inner = config.HIDDEN_SIZE, config.INTERMEDIATE_SIZE
        sizes = {
            "self_attn.q_proj": (query, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, query), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        matrices = {
            f"{name}.weight": (torch.randn(size, generator=self.g) / size[1] ** 0.5).to(self.stored)
            for name, size in sizes.items()
        }
        if self.c.facts.attention_bias:
            for name in "qkv":
                rows = sizes[f"self_attn.{name}_proj"][0]
                matrices[f"self_attn.{name}_proj.bias"] = torch.randn(rows, generator=self.g).to(self.stored)
        return matrices

    def prompt(self, length: int) -> list[int]:
        return [self.c.rng.randrange(self.c.config.VOCAB_SIZE) for _ in range(length)]

    def batch(self, chunks: list[tuple[int, list[int]]], sample: bool = True) -> tuple[Any, Tensor, Tensor]:
        """Chunks (start, token ids) of up to two sequences, and the rotation of their positions."""
        block = self.c.config.BLOCK_SIZE
        positions = torch.cat([torch.arange(start, start + len(ids)) for start, ids in chunks])
        owners = torch.cat([torch.full((len(ids),), row) for row, (_, ids) in enumerate(chunks)])
        starts = torch.tensor([0, *(len(ids) for _, ids in chunks)]).cumsum(0)
        batch = self.c.unit("Batch")(
            token_ids=torch.tensor([token for _, ids in chunks for token in ids]),
            positions=positions,
            slot_mapping=self.tables[owners, positions // block].long() * block + positions % block,
            block_tables=self.tables[: len(chunks)].contiguous(),
            query_start=starts.to(torch.int32),
            context_lens=torch.tensor([start + len(ids) for start, ids in chunks], dtype=torch.int32),
            sample_rows=starts[1:] - 1 if sample else torch.zeros(0, dtype=torch.int64),
        )
        cos, sin = self.c.unit("rope_tables")(self.c.config.MAX_MODEL_LEN)
        return batch, cos[positions], sin[positions]

    def logits(self, prompt: list[int]) -> Tensor:
        x = self.weights["model.embed_tokens.weight"][prompt].double()
        for index in range(self.c.config.NUM_LAYERS):
            x = self.layer(x, index)
        normed = self._normed(x[-1:], "model.norm.weight")
        head = self.weights["model.embed_tokens.weight" if self.c.facts.tied_embeddings else "lm_head.weight"]
        return torch.cat([normed @ part.double().T for part in head.split(4096)], dim=-1)

    def layer(self, x: Tensor, index: int) -> Tensor:
        name = f"model.layers.{index}"
        x = x + self._attention(self._normed(x, f"{name}.input_layernorm.weight"), f"{name}.self_attn")
        normed = self._normed(x, f"{name}.post_attention_layernorm.weight")
        gate = self._projected(normed, f"{name}.mlp.gate_proj")
        opened = gate / (1 + (-gate).exp()) * self._projected(normed, f"{name}.mlp.up_proj")
        return x + self._projected(opened, f"{name}.mlp.down_proj")

    def _attention(self, x: Tensor, name: str) -> Tensor:
        config = self.c.config
        query, key, value = (
            self._projected(x, f"{name}.{part}_proj").view(len(x), -1, config.HEAD_DIM) for part in "qkv"
        )
        if self.c.facts.qk_norm:
            query = self._normed(query, f"{name}.q_norm.weight")
            key = self._normed(key, f"{name}.k_norm.weight")
        query, key = self._turned(query), self._turned(key)
        shared = torch.arange(config.NUM_HEADS) // (config.NUM_HEADS // config.NUM_KV_HEADS)
        scores = torch.einsum("ihd,jhd->hij", query, key[:, shared]) / config.HEAD_DIM**0.5
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        attended = torch.einsum("hij,jhd->ihd", weights, value[:, shared]).flatten(1)
        return self._projected(attended, f"{name}.o_proj")

    def _projected(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].double().T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias.double()

    def _normed(self, x: Tensor, name: str) -> Tensor:
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return x / (mean_square + self.c.config.RMS_NORM_EPS).sqrt() * self.weights[name].double()

    def _turned(self, x: Tensor) -> Tensor:
        half = self.c.config.HEAD_DIM // 2
        frequency = torch.tensor([self.c.config.ROPE_THETA ** (-i / half) for i in range(half)], dtype=torch.float64)
        angle = torch.arange(len(x))[:, None, None] * frequency
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


def _compare(check: str, what: str, got: Tensor, expected: Tensor) -> Iterator[Finding]:
    if got.shape != expected.shape or got.dtype != torch.float32:
        yield Finding(check, f"{what}: returns {[*got.shape]} {got.dtype}, not {[*expected.shape]} float32")
        return
    error = (got.double() - expected).abs().nan_to_num(nan=float("inf")).amax(dim=-1) / expected.abs().max()
    if not float(error.max()) <= TOLERANCE:
        yield Finding(
            check,
            f"{what}: row {int(error.argmax())} differs from float64",
            {"relative_error": float(error.max()), "tolerance": TOLERANCE},
        )
