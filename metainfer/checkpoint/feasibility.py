"""Does it fit? Arithmetic over the spec and the checkpoint's facts, before anything is loaded."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from metainfer.checkpoint.facts import ModelFacts
from metainfer.errors import RefusedError
from metainfer.spec.models import Spec

RUNTIME_BYTES = 550_000_000
"""Interpreter, torch, tokenizer and server: 407 MB measured with torch 2.13, and room for their growth."""
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_BLOCK_TOKENS = 16
_STEP_TOKENS = 256


class InfeasibleError(RefusedError):
    """The deployment cannot work on this machine or with this model; the message shows the arithmetic."""


@dataclass(frozen=True)
class Feasibility:
    """Bytes that a deployment needs at its worst, by purpose."""

    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    runtime_bytes: int
    machine_bytes: int
    arithmetic: tuple[str, ...]
    """A line per term."""

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes + self.runtime_bytes

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.machine_bytes

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        total = f"total {_gb(self.needed_bytes)} of {_gb(self.machine_bytes)}: {verdict}"
        return "\n".join((*self.arithmetic, total))


def feasibility(spec: Spec, model: ModelFacts, machine_bytes: int | None = None) -> Feasibility:
    """The memory of `spec` at full load. `machine_bytes` defaults to this machine's memory.

    Raises InfeasibleError if the context is longer than the model was made for, its weights would be rounded, or it
    has no chat template to serve chat with.
    """
    workload = spec.workload
    if workload.max_model_len > model.max_position_embeddings:
        raise InfeasibleError(
            f"workload.max_model_len is {workload.max_model_len}, but the model's positions end at "
            f"{model.max_position_embeddings} (config.json: max_position_embeddings)"
        )
    if spec.precision.weights != "fp32" and spec.precision.weights != model.source_dtype:
        raise InfeasibleError(
            f"precision.weights is {spec.precision.weights}, but the checkpoint is {model.source_dtype}: rounding it "
            "would change the model; choose fp32"
        )
    if "chat" in spec.serving.features and not model.has_chat_template:
        raise InfeasibleError(
            "serving.features lists chat, but the model has no chat template; list completions, or take a chat model"
        )
    weight = _BYTES.get(spec.precision.weights, 4)
    weight_bytes = model.num_parameters * weight
    tokens = workload.max_concurrency * math.ceil(workload.max_model_len / _BLOCK_TOKENS) * _BLOCK_TOKENS
    kv = _BYTES[spec.precision.kv_cache]
    token_bytes = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * kv
    step = max(_STEP_TOKENS, workload.max_concurrency)
    widths = 4 * model.hidden_size + 3 * model.intermediate_size + 4 * model.num_attention_heads * model.head_dim
    activation_bytes = 4 * (step * widths + workload.max_concurrency * model.vocab_size * 3)
    rope_bytes = 2 * workload.max_model_len * model.head_dim * 4
    return Feasibility(
        weight_bytes=weight_bytes,
        kv_bytes=tokens * token_bytes,
        activation_bytes=activation_bytes + rope_bytes,
        runtime_bytes=RUNTIME_BYTES,
        machine_bytes=machine_bytes if machine_bytes is not None else memory_of_machine(),
        arithmetic=(
            f"weights {_gb(weight_bytes)} = {model.num_parameters:,} parameters × {weight} bytes",
            f"KV cache {_gb(tokens * token_bytes)} = {tokens:,} tokens × {token_bytes:,} bytes "
            f"(2 × {model.num_hidden_layers} layers × {model.num_key_value_heads} heads × {model.head_dim} × {kv})",
            f"activations {_gb(activation_bytes + rope_bytes)}: {step} tokens, {workload.max_concurrency} logit rows",
            f"runtime {_gb(RUNTIME_BYTES)}",
        ),
    )


def require_feasible(spec: Spec, model: ModelFacts, machine_bytes: int | None = None) -> Feasibility:
    """The arithmetic, or InfeasibleError with it and what to change."""
    result = feasibility(spec, model, machine_bytes)
    if not result.fits:
        raise InfeasibleError(
            f"{spec.name} does not fit this machine:\n{result}\n"
            "lower workload.max_concurrency or workload.max_model_len, or take a smaller model"
        )
    return result


def memory_of_machine() -> int:
    """This machine's memory, or what its container may have of it."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CONTAINER_LIMITS:
        try:
            text = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def _gb(value: int) -> str:
    return f"{value / 1e9:.2f} GB"
