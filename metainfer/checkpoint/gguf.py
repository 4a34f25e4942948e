"""GGUF to the canonical folder: tensors dequantised row by row and rounded once to bf16, the rest from the metadata.

File format: the `gguf` package. A GGUF holds no config.json; it is written here from the file's own keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metainfer.checkpoint.facts import ConfigRefusedError
from metainfer.checkpoint.gguf_tokenizer import write_tokenizer
from metainfer.checkpoint.tensors import WEIGHTS_NAME, write_safetensors
from metainfer.errors import InputError
from metainfer.files import pretty_json
from metainfer.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader, ReaderTensor

_STEP = "convert GGUF"
_SLICE_ELEMENTS = 1 << 22
"""Elements dequantised at a time: 16 MB in fp32, so that memory does not follow the size of the largest tensor."""

_ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def convert(file: Path, out: Path, progress: Progress) -> None:
    """Fill the empty folder `out` from `file`. Raises InputError for damage, ConfigRefusedError for the unknown."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
    except (ValueError, OSError, IndexError) as error:
        raise InputError(f"{file}: not a GGUF file: {error}") from error
    fields = {key: field.contents() for key, field in reader.fields.items()}
    tensors = _named_tensors(file, reader)
    progress.start(_STEP, total=sum(int(t.n_elements) for t in tensors.values()))
    (out / "config.json").write_bytes(pretty_json(_config(file, fields, tensors)))
    (out / "generation_config.json").write_bytes(pretty_json(write_tokenizer(file, fields, out)))
    layout = {name: ("BF16", [int(n) for n in reversed(t.shape)]) for name, t in tensors.items()}
    write_safetensors(out / WEIGHTS_NAME, layout, _bf16_pieces(file, tensors, progress))
    progress.done(_STEP, f"{len(tensors)} tensors")


def _named_tensors(file: Path, reader: GGUFReader) -> dict[str, ReaderTensor]:
    """Tensors by their name in transformers, in the order of the forward pass."""
    named: dict[str, ReaderTensor] = {}
    unknown = []
    for tensor in reader.tensors:
        layer = re.fullmatch(r"blk\.(\d+)\.(.+)", tensor.name)
        name = _LAYER.get(layer[2]) if layer else _TOP.get(tensor.name)
        if name is None:
            unknown.append(tensor.name)
        else:
            named[f"model.layers.{layer[1]}.{name}" if layer else name] = tensor
    if unknown:
        raise ConfigRefusedError(f"{file}: tensors that no knowledge covers: {', '.join(unknown[:8])}")
    return dict(sorted(named.items(), key=lambda item: _forward_order(item[0])))


def _forward_order(name: str) -> tuple[int, int, str]:
    if name.startswith("model.layers."):
        return 1, int(name.split(".")[2]), name
    return (0 if "embed" in name else 2 if "norm" in name else 3), 0, name


def _config(file: Path, fields: Mapping[str, Any], tensors: Mapping[str, ReaderTensor]) -> dict[str, Any]:
    """config.json, as transformers reads it. Every key of the architecture is used or refused."""
    architecture = fields.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ConfigRefusedError(
            f"{file}: general.architecture = {architecture!r}: not covered; covered are {', '.join(_ARCHITECTURES)}"
        )
    own = {key.removeprefix(f"{architecture}."): v for key, v in fields.items() if key.startswith(f"{architecture}.")}
    values = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "vocab_size": int(tensors["model.embed_tokens.weight"].shape[1]),
        "num_hidden_layers": _take(file, own, "block_count"),
        "max_position_embeddings": _take(file, own, "context_length"),
        "hidden_size": _take(file, own, "embedding_length"),
        "intermediate_size": _take(file, own, "feed_forward_length"),
        "num_attention_heads": _take(file, own, "attention.head_count"),
        "num_key_value_heads": _take(file, own, "attention.head_count_kv"),
        "rms_norm_eps": _shortest(_take(file, own, "attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(_take(file, own, "rope.freq_base")),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
    }
    values["head_dim"] = own.pop("attention.key_length", None) or values["hidden_size"] // values["num_attention_heads"]
    if own.pop("attention.value_length", values["head_dim"]) != values["head_dim"]:
        raise ConfigRefusedError(f"{file}: values have another head size than keys; not covered")
    if own:
        raise ConfigRefusedError(f"{file}: keys that no knowledge covers: {', '.join(sorted(own))}")
    return values


def _take(file: Path, own: dict[str, Any], key: str) -> Any:
    if key not in own:
        raise InputError(f"{file}: the metadata lacks {key}")
    return own.pop(key)


def _shortest(value: float) -> float:
    """The decimal that was written before fp32 made 9.99999997e-07 of 1e-06."""
    import numpy as np

    return float(str(np.float32(value)))


def _bf16_pieces(
    file: Path, tensors: Mapping[str, ReaderTensor], progress: Progress
) -> Iterator[tuple[str, memoryview]]:
    from gguf.quants import dequantize

    for name, tensor in tensors.items():
        rows = tensor.data if tensor.data.ndim > 1 else tensor.data[None]
        step = max(1, _SLICE_ELEMENTS // int(tensor.shape[0]))
        for first in range(0, len(rows), step):
            try:
                values = dequantize(rows[first : first + step], tensor.tensor_type)
            except NotImplementedError as error:
                raise ConfigRefusedError(f"{file}: {tensor.name}: {tensor.tensor_type.name} is not covered") from error
            yield name, memoryview(to_bf16(values).tobytes())
            progress.advance(_STEP, values.size)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """fp32 [...] to the bits of bf16 [...] uint16, rounding to nearest, ties to even. NaN stays NaN."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding could carry a NaN's payload over into infinity.
    return np.where(np.isnan(values), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)
