"""Grouped-query attention over the paged KV cache."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .batch import Batch
from .config import BLOCK_SIZE, HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS
from .kernels import load_kernels
from .layers import Linear, apply_rope


class KVCache:
    """key, value: [layers, blocks, block_size, kv_heads, head_dim] fp32; memory is used once it is written."""

    def __init__(self, num_blocks: int) -> None:
        shape = (NUM_LAYERS, num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
        self.key = torch.empty(shape, dtype=torch.float32)
        self.value = torch.empty(shape, dtype=torch.float32)

    def write(self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        """Put key, value [tokens, kv_heads, head_dim] into the tokens' slots."""
        self.key[layer].flatten(0, 1).index_copy_(0, slot_mapping, key)
        self.value[layer].flatten(0, 1).index_copy_(0, slot_mapping, value)


def paged_attention(query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: Batch) -> Tensor:
    """Attend each token to the keys of its sequence up to its own position.

    query: [tokens, heads, head_dim] fp32, the tokens of `batch`; key_cache, value_cache: one layer of KVCache,
    in which these tokens are written already. Returns [tokens, heads, head_dim] fp32.
    """
    tokens = int(batch.query_start[-1])
    if tokens == 0 or query.shape != (tokens, NUM_HEADS, HEAD_DIM):
        raise ValueError(f"{[*query.shape]} is not the query of {tokens} tokens, {NUM_HEADS} heads, {HEAD_DIM} each")
    for cache in (key_cache, value_cache):
        if cache.shape[1:] != (BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM) or not cache.is_contiguous():
            raise ValueError(f"{[*cache.shape]} is not one layer of the KV cache")
    if any(t.dtype != torch.float32 for t in (query, key_cache, value_cache)):
        raise TypeError("paged_attention takes float32")
    for indices in (batch.block_tables, batch.query_start, batch.context_lens):
        if indices.dtype != torch.int32 or not indices.is_contiguous():
            raise TypeError("paged_attention takes the batch's indices as contiguous int32")
    query, out = query.contiguous(), torch.empty_like(query, memory_format=torch.contiguous_format)
    refused = _paged_attention()(
        query.data_ptr(), key_cache.data_ptr(), value_cache.data_ptr(), out.data_ptr(),
        batch.block_tables.data_ptr(), batch.query_start.data_ptr(), batch.context_lens.data_ptr(),
        *batch.block_tables.shape, key_cache.shape[0], torch.get_num_threads(),
    )  # fmt: skip
    if refused >= 0:
        raise ValueError(f"sequence {refused} of the batch: its context is not covered by valid blocks")
    return out


@functools.cache
def _paged_attention() -> Any:
    kernel = load_kernels().paged_attention
    kernel.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int] * 4
    kernel.restype = ctypes.c_int
    return kernel


class Attention:
    """Projects to queries, keys and values, turns them by position, caches, attends, projects back."""

    def __init__(self, weights: Mapping[str, Tensor], kv_cache: KVCache, layer: int) -> None:
        """weights: the checkpoint's names below `self_attn.`; layer: which part of `kv_cache` is this layer's."""
        self.kv_cache = kv_cache
        self.layer = layer
        bias = torch.cat([weights[f"{name}_proj.bias"] for name in "qkv"])
        self.qkv_proj = Linear(*(weights[f"{name}_proj.weight"] for name in "qkv"), bias=bias)
        self.o_proj = Linear(weights["o_proj.weight"])

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """x: [tokens, hidden] fp32; cos, sin: [tokens, head_dim] fp32 -> [tokens, hidden] fp32"""
        heads = self.qkv_proj(x).view(len(x), -1, HEAD_DIM)
        query_key, value = heads.split([NUM_HEADS + NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
        query, key = apply_rope(query_key, cos, sin).split([NUM_HEADS, NUM_KV_HEADS], dim=1)
        self.kv_cache.write(self.layer, key, value, batch.slot_mapping)
        attended = paged_attention(query, self.kv_cache.key[self.layer], self.kv_cache.value[self.layer], batch)
        return self.o_proj(attended.flatten(1))
