"""Grouped-query self-attention of one layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .config import HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, RMS_NORM_EPS
from .facts import S
from .units import Batch, KVCache, Linear, RMSNorm, apply_rope, paged_attention


class Attention:
    """Projects to queries, keys and values, turns them by position, caches, attends, projects back."""

    def __init__(self, weights: Mapping[str, Tensor], kv_cache: KVCache, layer: int) -> None:
        """weights: the checkpoint's names below `self_attn.`; layer: which part of `kv_cache` is this layer's."""
        self.kv_cache = kv_cache
        self.layer = layer
        if S.attention_bias:
            bias = torch.cat([weights[f"{name}_proj.bias"] for name in "qkv"])
            self.qkv_proj = Linear(*(weights[f"{name}_proj.weight"] for name in "qkv"), bias=bias)
        else:
            self.qkv_proj = Linear(*(weights[f"{name}_proj.weight"] for name in "qkv"))
        self.o_proj = Linear(weights["o_proj.weight"])
        if S.qk_norm:
            self.q_norm = RMSNorm(weights["q_norm.weight"], RMS_NORM_EPS)
            self.k_norm = RMSNorm(weights["k_norm.weight"], RMS_NORM_EPS)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """x: [tokens, hidden] fp32; cos, sin: [tokens, head_dim] fp32 -> [tokens, hidden] fp32"""
        heads = self.qkv_proj(x).view(len(x), -1, HEAD_DIM)
        query_key, value = heads.split([NUM_HEADS + NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
        if S.qk_norm:
            query, key = query_key.split([NUM_HEADS, NUM_KV_HEADS], dim=1)
            query_key = torch.cat((self.q_norm(query), self.k_norm(key)), dim=1)
        query, key = apply_rope(query_key, cos, sin).split([NUM_HEADS, NUM_KV_HEADS], dim=1)
        self.kv_cache.write(self.layer, key, value, batch.slot_mapping)
        attended = paged_attention(query, self.kv_cache.key[self.layer], self.kv_cache.value[self.layer], batch)
        return self.o_proj(attended.flatten(1))
