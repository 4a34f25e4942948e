"""`config.py` and `csrc/constants.h`: every number of the deployment, named, and nowhere else in the engine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from metainfer.checkpoint.facts import ModelFacts
from metainfer.spec.models import Spec

BLOCK_SIZE = 16
"""Tokens of one KV block. Small blocks waste little of a short sequence and make more prefixes shareable."""
PREFILL_CHUNK = 256
"""Tokens one step may compute. Larger chunks use the cores better, smaller ones hold up decodes less."""


@dataclass(frozen=True)
class Constant:
    """One line of `config.py`."""

    name: str
    value: int | float | str | tuple[int, ...]
    source: str
    """Where the value comes from: a key of the checkpoint or of the spec, or the rule that derives it."""


def engine_constants(name: str, digest: str, model: ModelFacts, limits: Limits) -> tuple[Constant, ...]:
    """All constants an engine may use, in the order in which `config.py` lists them."""
    return (
        Constant("ENGINE_NAME", name, "spec: name; also the served model id"),
        Constant("MODEL_DIGEST", digest, "of the model folder"),
        Constant("VOCAB_SIZE", model.vocab_size, "config.json: vocab_size"),
        Constant("HIDDEN_SIZE", model.hidden_size, "config.json: hidden_size"),
        Constant("INTERMEDIATE_SIZE", model.intermediate_size, "config.json: intermediate_size"),
        Constant("NUM_LAYERS", model.num_hidden_layers, "config.json: num_hidden_layers"),
        Constant("NUM_HEADS", model.num_attention_heads, "config.json: num_attention_heads"),
        Constant("NUM_KV_HEADS", model.num_key_value_heads, "config.json: num_key_value_heads"),
        Constant("HEAD_DIM", model.head_dim, "config.json: head_dim, or hidden_size / num_attention_heads"),
        Constant("RMS_NORM_EPS", model.rms_norm_eps, "config.json: rms_norm_eps"),
        Constant("ROPE_THETA", model.rope_theta, "config.json: rope_theta"),
        Constant("EOS_TOKEN_IDS", tuple(model.eos_token_ids), "generation_config.json and config.json: eos_token_id"),
        Constant("MAX_MODEL_LEN", limits.max_model_len, "spec: workload.max_model_len; prompt and output together"),
        Constant("MAX_CONCURRENCY", limits.max_concurrency, "spec: workload.max_concurrency; sequences in one step"),
        Constant("BLOCK_SIZE", BLOCK_SIZE, "tokens of one KV block"),
        Constant("NUM_KV_BLOCKS", limits.num_kv_blocks, "MAX_CONCURRENCY sequences of MAX_MODEL_LEN tokens each"),
        Constant("PREFILL_CHUNK", limits.prefill_chunk, "tokens computed in one step, decodes included"),
    )


@dataclass(frozen=True)
class Limits:
    """What the spec's workload means for the engine's buffers."""

    max_model_len: int
    max_concurrency: int

    @classmethod
    def from_spec(cls, spec: Spec) -> Limits:
        return cls(spec.workload.max_model_len, spec.workload.max_concurrency)

    @property
    def num_kv_blocks(self) -> int:
        return self.max_concurrency * math.ceil(self.max_model_len / BLOCK_SIZE)

    @property
    def prefill_chunk(self) -> int:
        return max(PREFILL_CHUNK, self.max_concurrency)


def config_module(constants: Iterable[Constant]) -> str:
    """The text of `config.py`, unformatted."""
    lines = [
        '"""The facts of this deployment. The generator wrote them; the rest of the engine only reads them."""',
        "",
        "from typing import Final",
        "",
    ]
    for constant in constants:
        kind = ": Final[tuple[int, ...]]" if isinstance(constant.value, tuple) else ": Final"
        lines.append(f"{constant.name}{kind} = {constant.value!r}  # {constant.source}")
    return "\n".join(lines) + "\n"


def constants_header(constants: Iterable[Constant]) -> str:
    """The text of `csrc/constants.h`: the integers among the constants, for the kernels."""
    lines = [
        "// The facts of this deployment that the kernels are compiled for. Written by the generator.",
        "#pragma once",
    ]
    lines += ["", *(f"constexpr int {c.name} = {c.value};" for c in constants if isinstance(c.value, int))]
    return "\n".join(lines) + "\n"
