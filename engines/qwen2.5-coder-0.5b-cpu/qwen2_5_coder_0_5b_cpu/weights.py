"""Loads the model folder, and only that folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from .config import HEAD_DIM, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS, VOCAB_SIZE


def load_weights(folder: Path, expected_digest: str) -> dict[str, Tensor]:
    """Every tensor of the model by its name in the checkpoint, memory-mapped.

    Raises ValueError for a folder with another digest, and by name for a tensor that is missing, left over,
    stored twice, or of another shape or dtype.
    """
    if (digest := _folder_digest(folder)) != expected_digest:
        raise ValueError(f"{folder} is not this engine's model: its digest is {digest}, not {expected_digest}")
    weights = _read(folder / "model.safetensors")
    shapes = _shapes()
    if missing := shapes.keys() - weights.keys():
        raise ValueError(f"{folder} lacks {', '.join(sorted(missing))}")
    if left_over := weights.keys() - shapes.keys():
        raise ValueError(f"{folder} holds tensors that the model does not use: {', '.join(sorted(left_over))}")
    return {name: _audited(name, weights[name], shape) for name, shape in shapes.items()}


def _folder_digest(folder: Path) -> str:
    """`sha256:` over the sorted lines `name NUL sha256 LF` of the folder's files, dot files left out."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if path.is_file() and not path.name.startswith("."):
            with path.open("rb") as stream:
                total.update(f"{path.name}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _read(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt", device="cpu") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping


def _audited(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tensor.shape != shape:
        raise ValueError(f"{name} is {[*tensor.shape]}, not {[*shape]}")
    if tensor.dtype != torch.bfloat16:
        raise ValueError(f"{name} is {tensor.dtype}; this engine computes with bfloat16 weights")
    return tensor


def _shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the model and its shape; linear weights are [out, in]."""
    query, kv = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN_SIZE,),
        "self_attn.q_proj.weight": (query, HIDDEN_SIZE),
        "self_attn.k_proj.weight": (kv, HIDDEN_SIZE),
        "self_attn.v_proj.weight": (kv, HIDDEN_SIZE),
        "self_attn.o_proj.weight": (HIDDEN_SIZE, query),
        "post_attention_layernorm.weight": (HIDDEN_SIZE,),
        "mlp.gate_proj.weight": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        "mlp.up_proj.weight": (INTERMEDIATE_SIZE, HIDDEN_SIZE),
        "mlp.down_proj.weight": (HIDDEN_SIZE, INTERMEDIATE_SIZE),
    }
    layer |= {f"self_attn.{name}_proj.bias": (size,) for name, size in (("q", query), ("k", kv), ("v", kv))}
    shapes = {f"model.layers.{index}.{name}": layer[name] for index in range(NUM_LAYERS) for name in layer}
    shapes |= {"model.embed_tokens.weight": (VOCAB_SIZE, HIDDEN_SIZE), "model.norm.weight": (HIDDEN_SIZE,)}
    shapes["lm_head.weight"] = (VOCAB_SIZE, HIDDEN_SIZE)
    return shapes
