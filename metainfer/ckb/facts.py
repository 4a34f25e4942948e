"""The one vocabulary of facts: predicates ask about them, exemplars branch on them as `S.<fact>`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from metainfer.checkpoint.facts import ModelFacts
    from metainfer.spec.models import Spec


class Facts(BaseModel):
    """One deployment as knowledge sees it. Every fact has a closed set of values; numbers live in `config.py`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    architecture: Literal["qwen2", "qwen3"]
    attention_bias: bool
    """Query, key and value projections have a bias."""
    qk_norm: bool
    """Queries and keys are normalised per head before rotation."""
    tied_embeddings: bool
    """The head is the embedding."""
    sharded: bool
    """The weights lie in more than one safetensors file, with an index."""
    has_chat_template: bool
    platform: Literal["cpu-x86-avx2"]
    weight_dtype: Literal["fp32", "bf16"]
    activation_dtype: Literal["fp32"]
    kv_dtype: Literal["fp32"]
    optimise: Literal["latency", "throughput"]
    chat: bool
    completions: bool
    streaming: bool
    logprobs: bool
    stop: bool
    seed: bool

    @classmethod
    def from_spec(cls, spec: Spec, model: ModelFacts) -> Facts:
        """The facts of one deployment. A pydantic ValidationError means a spec that `refuse_unserved` let through."""
        features = set(spec.serving.features)
        return cls.model_validate(
            {
                "architecture": model.architecture,
                "attention_bias": model.attention_bias,
                "qk_norm": model.qk_norm,
                "tied_embeddings": model.tie_word_embeddings,
                "sharded": model.sharded,
                "has_chat_template": model.has_chat_template,
                "platform": spec.target.platform,
                "weight_dtype": spec.precision.weights,
                "activation_dtype": spec.precision.activations,
                "kv_dtype": spec.precision.kv_cache,
                "optimise": spec.workload.optimise,
                **{name: name in features for name in SERVING_FEATURES},
            }
        )


SERVING_FEATURES: tuple[str, ...] = ("chat", "completions", "streaming", "logprobs", "stop", "seed")
"""Facts that the spec's `serving.features` switches on, by the same names."""


def fact_domains() -> dict[str, tuple[bool, ...] | tuple[str, ...]]:
    """Every fact and the values it may have, in the order of declaration."""
    domains: dict[str, tuple[bool, ...] | tuple[str, ...]] = {}
    for name, annotation in get_type_hints(Facts).items():
        if name in Facts.model_fields:
            domains[name] = get_args(annotation) if get_origin(annotation) is Literal else (False, True)
    return domains
