"""Self-attention of one layer."""

from collections.abc import Mapping

from torch import Tensor

from .config import HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, RMS_NORM_EPS
from .units import Batch, KVCache, Linear, RMSNorm, apply_rope, paged_attention


class Attention:
    """weights: by the checkpoint's names below `self_attn.`; x: [tokens, hidden] fp32 -> [tokens, hidden] fp32."""

    def __init__(self, weights: Mapping[str, Tensor], kv_cache: KVCache, layer: int) -> None:
        self._project_in = Linear(*(weights[f"{name}_proj.weight"] for name in "qkv"))
        self._project_out = Linear(weights["o_proj.weight"])
        self._norm_query = RMSNorm(weights["q_norm.weight"], RMS_NORM_EPS)
        self._norm_key = RMSNorm(weights["k_norm.weight"], RMS_NORM_EPS)
        self._cache = kv_cache
        self._layer = layer

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """cos, sin: [tokens, head_dim], the rows of the batch's positions."""
        heads = self._project_in(x).unflatten(-1, (-1, HEAD_DIM))
        query, key, value = heads.split([NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
        query = apply_rope(self._norm_query(query), cos, sin)
        key = apply_rope(self._norm_key(key), cos, sin)
        self._cache.write(self._layer, key, value, batch.slot_mapping)
        seen = paged_attention(query, self._cache.key[self._layer], self._cache.value[self._layer], batch)
        return self._project_out(seen.flatten(1))
