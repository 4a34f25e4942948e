"""GGUF to the canonical folder: tensors dequantised in slices and rounded once, the rest written from the metadata.

A GGUF holds no config.json; it is written here from the file's own keys, and a key that nothing understands is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metainfer.checkpoint.facts import ConfigRefusedError, require_layers
from metainfer.checkpoint.gguf_file import GgufFile, GgufTensor
from metainfer.checkpoint.gguf_tokenizer import write_tokenizer
from metainfer.checkpoint.layout import expected_shapes
from metainfer.checkpoint.tensors import WEIGHTS_NAME, write_safetensors
from metainfer.errors import InputError
from metainfer.files import pretty_json
from metainfer.progress import Progress

if TYPE_CHECKING:
    import numpy as np

_STEP = "convert GGUF"
_SLICE_ELEMENTS = 1 << 22
"""Elements dequantised at a time: 16 MB in fp32, so that memory does not follow the size of the largest tensor."""

_ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
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
Tensors = Mapping[str, GgufTensor]


def convert(path: Path, out: Path, progress: Progress) -> None:
    """Fill the empty folder `out` from `path`. Raises InputError for damage, ConfigRefusedError for the unknown."""
    with GgufFile(path) as file:
        tensors = _named_tensors(file)
        dtype = _dtype(tensors)
        config = _config(file, tensors) | {"dtype": _DTYPES[dtype]}
        _check_shapes(path, config, tensors)
        progress.start(_STEP, total=sum(tensor.elements for tensor in tensors.values()))
        (out / "config.json").write_bytes(pretty_json(config))
        (out / "generation_config.json").write_bytes(pretty_json(write_tokenizer(path, file.fields, out)))
        layout = {name: (dtype, tensor.shape) for name, tensor in tensors.items()}
        write_safetensors(out / WEIGHTS_NAME, layout, _pieces(file, tensors, dtype, progress))
    progress.done(_STEP, f"{len(tensors)} tensors")


def _named_tensors(file: GgufFile) -> Tensors:
    """Tensors by their name in transformers, in the order of the forward pass."""
    named: dict[str, GgufTensor] = {}
    unknown = []
    for tensor in file.tensors:
        layer = re.fullmatch(r"blk\.(\d+)\.(.+)", tensor.name)
        name = _LAYER.get(layer[2]) if layer else _TOP.get(tensor.name)
        if name is None:
            unknown.append(tensor.name)
        else:
            named[f"model.layers.{layer[1]}.{name}" if layer else name] = tensor
    if unknown:
        raise ConfigRefusedError(f"{file.path}: tensors that no knowledge covers: {', '.join(unknown[:8])}")
    return dict(sorted(named.items(), key=lambda item: _forward_order(item[0])))


def _forward_order(name: str) -> tuple[int, int, str]:
    if name.startswith("model.layers."):
        return 1, int(name.split(".")[2]), name
    return (0 if "embed" in name else 2 if "norm" in name else 3), 0, name


def _dtype(tensors: Tensors) -> str:
    """What the weights are rounded to: the precision of the matrices, and bf16 where they are quantised or mixed."""
    matrices = {tensor.type for tensor in tensors.values() if len(tensor.shape) > 1}
    return matrices.pop() if len(matrices) == 1 and matrices <= {"F32", "F16"} else "BF16"


def _config(file: GgufFile, tensors: Tensors) -> dict[str, Any]:
    """config.json, as transformers reads it. Every key of the architecture is used or refused."""
    architecture = file.fields.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ConfigRefusedError(
            f"{file.path}: general.architecture = {architecture!r}: covered are {', '.join(_ARCHITECTURES)}"
        )
    if file.fields.get("split.count", 1) != 1:
        raise ConfigRefusedError(f"{file.path}: one part of a split GGUF; join the parts with llama-gguf-split first")
    if "model.embed_tokens.weight" not in tensors:
        raise InputError(f"{file.path}: the tensor token_embd.weight is missing")
    own = _Keys(file, architecture)
    values = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_act": "silu",
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "num_hidden_layers": own.whole("block_count"),
        "max_position_embeddings": own.whole("context_length"),
        "hidden_size": own.whole("embedding_length"),
        "intermediate_size": own.whole("feed_forward_length"),
        "num_attention_heads": own.whole("attention.head_count"),
        "num_key_value_heads": own.whole("attention.head_count_kv"),
        "rms_norm_eps": own.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": own.real("rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "eos_token_id": file.fields.get("tokenizer.ggml.eos_token_id"),
    }
    values["head_dim"] = own.take("attention.key_length") or values["hidden_size"] // values["num_attention_heads"]
    own.agree("attention.value_length", values["head_dim"])
    own.agree("rope.dimension_count", values["head_dim"])
    own.agree("rope.scaling.type", "none")
    own.agree("vocab_size", values["vocab_size"])
    own.refuse_rest()
    return values


class _Keys:
    """The keys of one architecture, each taken once."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._path, self._prefix = file.path, f"{architecture}."
        self._left = {key: value for key, value in file.fields.items() if key.startswith(self._prefix)}

    def take(self, key: str) -> Any:
        return self._left.pop(self._prefix + key, None)

    def whole(self, key: str) -> int:
        value = self.take(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{self._path}: {self._prefix}{key} is {value!r}; a positive whole number is needed")
        return value

    def real(self, key: str) -> float:
        """The shortest decimal of the stored fp32: 1e-06 where 9.999999974752427e-07 is stored, the same fp32."""
        import numpy as np

        value = self.take(key)
        if not isinstance(value, float) or not 0 < value < float("inf"):
            raise InputError(f"{self._path}: {self._prefix}{key} is {value!r}; a positive number is needed")
        return float(str(np.float32(value)))

    def agree(self, key: str, expected: Any) -> None:
        """Take an optional key that must not say anything else."""
        value = self.take(key)
        if value is not None and value != expected:
            raise ConfigRefusedError(
                f"{self._path}: {self._prefix}{key} = {value!r}: only {expected!r} is covered here"
            )

    def refuse_rest(self) -> None:
        if self._left:
            shown = ", ".join(f"{key} = {str(value)[:40]}" for key, value in sorted(self._left.items()))
            raise ConfigRefusedError(f"{self._path}: no knowledge says what these keys do: {shown}")


def _check_shapes(path: Path, config: Mapping[str, Any], tensors: Tensors) -> None:
    """Raise InputError unless the file holds exactly the tensors that its metadata promises."""
    require_layers(path, config["num_hidden_layers"], tensors)
    expected = expected_shapes(config, biased=any(name.endswith(".bias") for name in tensors))
    if missing := sorted(expected.keys() - tensors.keys()):
        raise InputError(f"{path}: {len(missing)} tensors are missing, among them {', '.join(missing[:4])}")
    if left_over := sorted(tensors.keys() - expected.keys()):
        raise InputError(f"{path}: tensors that the metadata has no place for: {', '.join(left_over[:4])}")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise InputError(f"{path}: {name} is {[*tensors[name].shape]}; the metadata says {[*shape]}")


def _pieces(file: GgufFile, tensors: Tensors, dtype: str, progress: Progress) -> Iterator[tuple[str, bytes]]:
    import numpy as np

    for name, tensor in tensors.items():
        try:
            for values in file.values(tensor, _SLICE_ELEMENTS):
                if not np.isfinite(values).all():
                    raise InputError(f"{file.path}: {tensor.name} holds values that are no finite numbers")
                yield name, _rounded(values, dtype).tobytes()
                progress.advance(_STEP, values.size)
        except NotImplementedError as error:
            raise ConfigRefusedError(f"{file.path}: {tensor.name}: {tensor.type} cannot be dequantised") from error


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """fp32 [rows, columns] in the bits of `dtype`, rounded to nearest, ties to even."""
    import numpy as np

    if dtype == "BF16":
        return to_bf16(values)
    return np.ascontiguousarray(values, np.float32 if dtype == "F32" else np.float16)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Finite fp32 [...] to the bits of bf16 [...] uint16, rounding to nearest, ties to even."""
    import numpy as np

    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = bits >> 16
    odd &= 1
    odd += 0x7FFF
    odd += bits
    odd >>= 16
    return odd.astype(np.uint16)
