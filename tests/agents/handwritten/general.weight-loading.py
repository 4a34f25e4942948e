"""The model folder's tensors: all that are expected, and nothing else."""

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import HEAD_DIM, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS, VOCAB_SIZE

_FILE = "model.safetensors"
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


def load_weights(folder: Path, expected_digest: str) -> dict[str, Tensor]:
    """By the checkpoint's names, mapped from the file: contiguous bf16 on the CPU. ValueError for any difference."""
    digest = _digest(folder)
    if digest != expected_digest:
        raise ValueError(f"{folder}: its digest is {digest}, expected {expected_digest}; this is another model")
    path = folder / _FILE
    if not path.is_file():
        raise ValueError(f"{path}: is missing, expected the model's tensors there")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            found: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: cannot be read ({error}), expected safetensors") from None
    _drop_copied_head(found)
    _audit(found, _expected_shapes())
    return found


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.is_file() and not path.name.startswith("."):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            whole.update(f"{path.name}\0{content}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def _expected_shapes() -> dict[str, tuple[int, ...]]:
    inner, outer = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    layer = {
        "self_attn.q_proj.weight": (inner, HIDDEN_SIZE),
        "self_attn.k_proj.weight": (outer, HIDDEN_SIZE),
        "self_attn.v_proj.weight": (outer, HIDDEN_SIZE),
        "self_attn.o_proj.weight": (HIDDEN_SIZE, inner),
        "self_attn.q_norm.weight": (HEAD_DIM,),
        "self_attn.k_norm.weight": (HEAD_DIM,),
        "mlp.gate_proj.weight": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        "mlp.up_proj.weight": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        "mlp.down_proj.weight": (HIDDEN_SIZE, INTERMEDIATE_SIZE),
        "input_layernorm.weight": (HIDDEN_SIZE,),
        "post_attention_layernorm.weight": (HIDDEN_SIZE,),
    }
    shapes: dict[str, tuple[int, ...]] = {_EMBEDDING: (VOCAB_SIZE, HIDDEN_SIZE), "model.norm.weight": (HIDDEN_SIZE,)}
    for i in range(NUM_LAYERS):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _drop_copied_head(found: dict[str, Tensor]) -> None:
    """The embedding is the head; a file may hold it twice, but not two of them."""
    head, embedding = found.pop(_HEAD, None), found.get(_EMBEDDING)
    if head is None or embedding is None:
        return
    if head.dtype != embedding.dtype or head.shape != embedding.shape or not torch.equal(head, embedding):
        raise ValueError(f"{_HEAD}: differs from {_EMBEDDING}, expected none or an equal one, for they are tied")


def _audit(found: dict[str, Tensor], expected: dict[str, tuple[int, ...]]) -> None:
    for name, shape in expected.items():
        if name not in found:
            raise ValueError(f"{name}: is missing, expected a tensor of shape {shape}")
        tensor = found[name]
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: has the shape {tuple(tensor.shape)}, expected {shape}")
        if tensor.dtype != torch.bfloat16:
            raise ValueError(f"{name}: is {tensor.dtype}, expected torch.bfloat16")
    if left := sorted(found.keys() - expected.keys()):
        raise ValueError(f"{', '.join(left)}: the model has no place for it, expected {len(expected)} tensors")
