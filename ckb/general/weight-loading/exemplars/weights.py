"""Loads the model folder, and only that folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from .config import HEAD_DIM, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS, VOCAB_SIZE
from .facts import S


def load_weights(folder: Path, expected_digest: str) -> dict[str, Tensor]:
    """Every tensor of the model by its name in the checkpoint, memory-mapped.

    Raises ValueError for a folder with another digest, and by name for a tensor that is missing, left over,
    stored twice, or of another shape or dtype.
    """
    if (digest := _folder_digest(folder)) != expected_digest:
        raise ValueError(f"{folder} is not this engine's model: its digest is {digest}, not {expected_digest}")
    weights = _read_shards(folder) if S.sharded else _read(folder / "model.safetensors")
    shapes = _shapes()
    if missing := shapes.keys() - weights.keys():
        raise ValueError(f"{folder} lacks {', '.join(sorted(missing))}")
    if S.tied_embeddings:
        # The head is the embedding. Some checkpoints store it once more; any other head would be a wrong fact.
        head = weights.pop("lm_head.weight", None)
        if head is not None and not torch.equal(head, weights["model.embed_tokens.weight"]):
            raise ValueError("lm_head.weight differs from model.embed_tokens.weight, but the embeddings are tied")
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


if S.sharded:

    def _read_shards(folder: Path) -> dict[str, Tensor]:
        """The tensors of all shards; each must hold exactly what the index says."""
        homes: dict[str, str] = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        weights: dict[str, Tensor] = {}
        for file in sorted(set(homes.values())):
            if Path(file).name != file:
                raise ValueError(f"the index names {file}, which does not lie in {folder}")
            shard = _read(folder / file)
            if wrong := shard.keys() ^ {name for name, home in homes.items() if home == file}:
                raise ValueError(f"{file} and the index disagree about {', '.join(sorted(wrong))}")
            weights |= shard
        return weights


def _audited(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tensor.shape != shape:
        raise ValueError(f"{name} is {[*tensor.shape]}, not {[*shape]}")
    if S.weight_dtype == "fp32":
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"{name} is {tensor.dtype}, which float32 does not hold exactly")
        tensor = tensor.float()
    elif tensor.dtype != torch.bfloat16:
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
    if S.attention_bias:
        layer |= {f"self_attn.{name}_proj.bias": (size,) for name, size in (("q", query), ("k", kv), ("v", kv))}
    if S.qk_norm:
        layer |= {"self_attn.q_norm.weight": (HEAD_DIM,), "self_attn.k_norm.weight": (HEAD_DIM,)}
    shapes = {f"model.layers.{index}.{name}": layer[name] for index in range(NUM_LAYERS) for name in layer}
    shapes |= {"model.embed_tokens.weight": (VOCAB_SIZE, HIDDEN_SIZE), "model.norm.weight": (HIDDEN_SIZE,)}
    if not S.tied_embeddings:
        shapes["lm_head.weight"] = (VOCAB_SIZE, HIDDEN_SIZE)
    return shapes
