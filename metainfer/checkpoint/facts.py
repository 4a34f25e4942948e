"""What a model folder says about itself. A fact that nothing here understands is refused by name, never ignored."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from metainfer.checkpoint.layout import HEAD_NAME, expected_shapes
from metainfer.checkpoint.tensors import INDEX_NAME, TensorInfo, tensor_index
from metainfer.errors import InputError, RefusedError
from metainfer.files import read_regular

SourceDtype = Literal["fp32", "bf16", "fp16"]
Architecture = Literal["qwen2", "qwen3"]
Place = Callable[[str], str]
"""Where a key of the config stands, for errors: a file, with line and column where they are known."""
_MAX_JSON_BYTES = 16 << 20
"""A tokenizer_config.json lists every added token, a few hundred bytes each."""
_DTYPES: dict[str, SourceDtype] = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}


class ConfigRefusedError(RefusedError):
    """The checkpoint has a fact that no knowledge covers; the message names the key and its value."""


class ModelFacts(BaseModel):
    """The architecture of one checkpoint. Names are those of transformers' config.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    sharded: bool
    has_chat_template: bool
    source_dtype: SourceDtype
    num_parameters: int
    weight_bytes: int


ARCHITECTURES: dict[str, Architecture] = {"Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}

_READ = {
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_parameters",
    "rope_scaling", "max_position_embeddings", "tie_word_embeddings", "attention_bias", "hidden_act", "eos_token_id",
    "bos_token_id", "pad_token_id", "use_sliding_window", "layer_types", "quantization_config",
    "use_mrope",
}  # fmt: skip
_HARMLESS = {
    "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range", "attention_dropout",
    "sliding_window", "max_window_layers", "_name_or_path", "output_attentions", "output_hidden_states", "return_dict",
    "id2label", "label2id", "problem_type", "chunk_size_feed_forward", "is_encoder_decoder", "_attn_implementation",
    "_attn_implementation_autoset", "is_decoder",
}  # fmt: skip
"""Keys that cannot change the forward pass: training, bookkeeping, or windows that `use_sliding_window` switches."""


def read_facts(folder: Path) -> ModelFacts:
    """Read the facts of a model folder. Raises InputError for damage, ConfigRefusedError for the unknown."""
    path = folder / "config.json"
    config = _read_json(path)
    generation = _read_json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    stated = _stated(_in_file(path), config)
    tensors = tensor_index(folder)
    facts = ModelFacts(
        **stated,
        attention_bias=_attention_bias(folder, stated["architecture"], config, tensors),
        eos_token_ids=_eos_token_ids(folder, config, generation, stated["vocab_size"]),
        sharded=(folder / INDEX_NAME).exists(),
        has_chat_template=_has_chat_template(folder),
        source_dtype=_source_dtype(folder, tensors),
        num_parameters=sum(info.elements for info in tensors.values()),
        weight_bytes=sum(info.nbytes for info in tensors.values()),
    )
    _check_tensors(folder, facts, tensors)
    return facts


def planned_facts(place: Place, config: Mapping[str, Any], dtype: SourceDtype) -> ModelFacts:
    """The facts of a model that somebody is about to make by `config`. Raises what `read_facts` would raise of it."""
    stated = _stated(place, config)
    biased = stated["architecture"] == "qwen2"
    if config.get("attention_bias") and not biased:
        raise ConfigRefusedError(f"{place('attention_bias')}: a Qwen3 model with attention_bias is not covered")
    shapes = expected_shapes(stated | {"model_type": stated["architecture"]}, biased=biased)
    parameters = sum(map(math.prod, shapes.values()))
    return ModelFacts(
        **stated,
        attention_bias=biased,
        eos_token_ids=tuple(_list(config.get("eos_token_id"))),
        sharded=False,
        has_chat_template=True,
        source_dtype=dtype,
        num_parameters=parameters,
        weight_bytes=parameters * (4 if dtype == "fp32" else 2),
    )


def _in_file(path: Path) -> Place:
    return lambda key: str(path)


def _stated(place: Place, config: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that config.json states by itself, by their names."""
    architecture = _architecture(place, config)
    _refuse_unknown(place, config)
    heads, kv_heads = _integer(place, config, "num_attention_heads"), _integer(place, config, "num_key_value_heads")
    if heads % kv_heads:
        raise InputError(
            f"{place('num_key_value_heads')}: {heads} heads cannot share {kv_heads} key-value heads "
            "(num_key_value_heads)"
        )
    vocab_size = _integer(place, config, "vocab_size")
    return {
        "architecture": architecture,
        "vocab_size": vocab_size,
        "hidden_size": _integer(place, config, "hidden_size"),
        "intermediate_size": _integer(place, config, "intermediate_size"),
        "num_hidden_layers": _integer(place, config, "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": _head_dim(place, architecture, config, heads),
        "rms_norm_eps": _positive(place, "rms_norm_eps", config.get("rms_norm_eps")),
        "rope_theta": _rope_theta(place, config),
        "max_position_embeddings": _integer(place, config, "max_position_embeddings"),
        "tie_word_embeddings": _flag(place, config, "tie_word_embeddings"),
        "qk_norm": architecture == "qwen3",
        "bos_token_id": _token_id(place, "bos_token_id", config.get("bos_token_id"), vocab_size),
        "pad_token_id": _token_id(place, "pad_token_id", config.get("pad_token_id"), vocab_size),
    }


def _refuse_unknown(place: Place, config: Mapping[str, Any]) -> None:
    complaints = [
        f"{place(key)}: {key} = {json.dumps(value)[:80]}: no knowledge says what this key does"
        for key, value in config.items()
        if key not in _READ | _HARMLESS and value is not None
    ]
    if config.get("hidden_act", "silu") != "silu":
        complaints.append(f"{place('hidden_act')}: hidden_act = {config['hidden_act']!r}: only silu is covered")
    if config.get("use_sliding_window"):
        complaints.append(
            f"{place('use_sliding_window')}: use_sliding_window = true: sliding-window attention is not covered"
        )
    if set(map(str, _list(config.get("layer_types")))) - {"full_attention"}:
        complaints.append(f"{place('layer_types')}: layer_types: only full_attention is covered")
    if config.get("quantization_config"):
        complaints.append(
            f"{place('quantization_config')}: quantization_config: quantised checkpoints are not covered; give the "
            "bf16 or fp32 model"
        )
    if config.get("use_mrope"):
        complaints.append(f"{place('use_mrope')}: use_mrope = true: multimodal rotary embedding is not covered")
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key) or {}
        if not isinstance(rope, dict):
            complaints.append(f"{place(key)}: {key} = {json.dumps(rope)[:80]}: not a JSON object")
            continue
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind != "default":
            complaints.append(f"{place(key)}: {key}: scaled rotary embedding of type {kind!r} is not covered")
        complaints += [
            f"{place(key)}: {key}.{inner} = {json.dumps(value)[:80]}: no knowledge says what this key does"
            for inner, value in rope.items()
            if inner not in ("rope_type", "type", "rope_theta") and value is not None and kind == "default"
        ]
    if complaints:
        raise ConfigRefusedError("\n".join(complaints))


def _list(value: Any) -> list[Any]:
    """`value` if it is a list, nothing for null, else a list of it alone."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _architecture(place: Place, config: Mapping[str, Any]) -> Architecture:
    named = _list(config.get("architectures"))
    if len(named) != 1 or not isinstance(named[0], str) or named[0] not in ARCHITECTURES:
        kind = f" (model_type {config['model_type']!r:.80})" if config.get("model_type") else ""
        raise ConfigRefusedError(
            f"{place('architectures')}: architectures = {json.dumps(named)[:80]}{kind}: not covered; covered are "
            f"{', '.join(f'{name} ({kind})' for name, kind in ARCHITECTURES.items())}"
        )
    architecture = ARCHITECTURES[named[0]]
    if config.get("model_type", architecture) != architecture:
        raise ConfigRefusedError(
            f"{place('model_type')}: model_type = {config['model_type']!r} disagrees with the architecture {named[0]}"
        )
    return architecture


def _head_dim(place: Place, architecture: Architecture, config: Mapping[str, Any], heads: int) -> int:
    if config.get("head_dim") is not None:
        return _integer(place, config, "head_dim")
    if architecture == "qwen3":
        # transformers would take 128 here, whatever the tensors say.
        raise InputError(f"{place('head_dim')}: head_dim is missing; a Qwen3 model needs it")
    hidden = _integer(place, config, "hidden_size")
    if hidden % heads:
        raise InputError(
            f"{place('hidden_size')}: hidden_size is {hidden}, no multiple of num_attention_heads = {heads}; without a "
            "head_dim each head takes its even share"
        )
    return hidden // heads


def _rope_theta(place: Place, config: Mapping[str, Any]) -> float:
    """From `rope_parameters` (transformers 5) or `rope_theta` (before)."""
    inner, outer = (config.get("rope_parameters") or {}).get("rope_theta"), config.get("rope_theta")
    if inner is not None and outer is not None and inner != outer:
        raise InputError(f"{place('rope_theta')}: rope_theta is {outer!r}, but rope_parameters.rope_theta is {inner!r}")
    return _positive(place, "rope_theta", outer if inner is None else inner)


def _positive(place: Place, key: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise InputError(f"{place(key)}: {key} is {value!r}; a positive number is needed")
    return float(value)


def _attention_bias(
    folder: Path, architecture: str, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> bool:
    """Read from the tensors themselves: config.json does not say it for Qwen2."""
    biased = {name.rsplit(".", 2)[1] for name in tensors if name.endswith(".bias")}
    if biased not in (set(), {"q_proj", "k_proj", "v_proj"}):
        raise ConfigRefusedError(
            f"{folder}: tensors with a bias: {', '.join(sorted(biased))}; covered are q, k and v only"
        )
    if architecture == "qwen3" and (biased or config.get("attention_bias")):
        # transformers then gives the output projection a bias as well.
        raise ConfigRefusedError(f"{folder}: a Qwen3 model with attention_bias is not covered")
    if architecture == "qwen2" and not biased:
        raise ConfigRefusedError(f"{folder}: a Qwen2 model without q, k and v biases; transformers would make them up")
    return bool(biased)


def _eos_token_ids(
    folder: Path, config: Mapping[str, Any], generation: Mapping[str, Any], vocab_size: int
) -> tuple[int, ...]:
    """The union of both files' `eos_token_id`, a number or a list in each, generation config first."""
    given = (("generation_config.json", generation), ("config.json", config))
    tokens = [
        _token_id(_in_file(folder / name), "eos_token_id", value, vocab_size)
        for name, content in given
        for value in _list(content.get("eos_token_id"))
    ]
    found = tuple(dict.fromkeys(token for token in tokens if token is not None))
    if not found:
        raise InputError(f"{folder}: neither generation_config.json nor config.json names an eos_token_id")
    return found


def _token_id(place: Place, key: str, value: Any, vocab_size: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
        raise InputError(f"{place(key)}: {key} is {value!r}; a token below vocab_size = {vocab_size} is needed")
    return value


def _check_tensors(folder: Path, facts: ModelFacts, tensors: Mapping[str, TensorInfo]) -> None:
    """Raise unless the files hold exactly the tensors that the facts promise. A tied head may be there or not."""
    require_layers(folder, facts.num_hidden_layers, tensors)
    config = facts.model_dump() | {"model_type": facts.architecture}
    expected = expected_shapes(config, biased=facts.attention_bias)
    if facts.tie_word_embeddings and HEAD_NAME in tensors:
        expected[HEAD_NAME] = (facts.vocab_size, facts.hidden_size)
    if missing := sorted(expected.keys() - tensors.keys()):
        raise InputError(f"{folder}: {len(missing)} tensors are missing, among them {', '.join(missing[:4])}")
    if left_over := sorted(tensors.keys() - expected.keys()):
        raise ConfigRefusedError(f"{folder}: tensors that no knowledge covers: {', '.join(left_over[:8])}")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise InputError(f"{folder}: {name} is {[*tensors[name].shape]}, config.json makes it {[*shape]}")


def require_layers(path: Path, layers: int, tensors: Sized) -> None:
    """Raise InputError for more layers than tensors, before anybody lists the tensors of so many layers."""
    if layers > len(tensors):
        raise InputError(f"{path}: {len(tensors)} tensors cannot be {layers:,} layers (num_hidden_layers)")


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").exists():
        return True
    path = folder / "tokenizer_config.json"
    return path.exists() and bool(_read_json(path).get("chat_template"))


def _source_dtype(folder: Path, tensors: Mapping[str, TensorInfo]) -> SourceDtype:
    """The precision of the matrices; norms and biases may be wider."""
    found = {info.dtype for info in tensors.values() if len(info.shape) > 1}
    if len(found) != 1 or not found <= _DTYPES.keys():
        raise ConfigRefusedError(f"{folder}: matrices in {', '.join(sorted(found))}; one of F32, BF16, F16 is covered")
    return _DTYPES[found.pop()]


def _integer(place: Place, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{place(key)}: {key} is {value!r}; a positive whole number is needed")
    return value


def _flag(place: Place, config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise InputError(f"{place(key)}: {key} is {value!r}; true or false is needed")
    return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_regular(path, _MAX_JSON_BYTES))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; a model folder needs it") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: not a JSON object")
    return data
