"""The decoder: layers over a hidden stream, and a head over the rows that are wanted."""

from collections.abc import Mapping

import torch
from torch import Tensor

from .config import MAX_MODEL_LEN, NUM_LAYERS, RMS_NORM_EPS
from .units import Attention, Batch, KVCache, Linear, RMSNorm, SwiGLU, rope_tables


class DecoderLayer:
    """weights: names below `model.layers.<layer>.`; x: [tokens, hidden] fp32 -> [tokens, hidden] fp32."""

    def __init__(self, weights: Mapping[str, Tensor], kv_cache: KVCache, layer: int) -> None:
        self._before_attention = RMSNorm(weights["input_layernorm.weight"], RMS_NORM_EPS)
        self._attention = Attention(_below("self_attn.", weights), kv_cache, layer)
        self._before_mlp = RMSNorm(weights["post_attention_layernorm.weight"], RMS_NORM_EPS)
        self._mlp = SwiGLU(*(weights[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down")))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """cos, sin: [tokens, head_dim] fp32, the rows of the batch's positions."""
        attended = x + self._attention(self._before_attention(x), cos, sin, batch)
        return attended + self._mlp(self._before_mlp(attended))


class CausalLM:
    """weights: what load_weights returns; forward gives [samples, vocab] fp32."""

    layers: list[DecoderLayer]

    def __init__(self, weights: Mapping[str, Tensor], kv_cache: KVCache) -> None:
        self._embedding = weights["model.embed_tokens.weight"]
        self.layers = [
            DecoderLayer(_below(f"model.layers.{layer}.", weights), kv_cache, layer) for layer in range(NUM_LAYERS)
        ]
        self._norm = RMSNorm(weights["model.norm.weight"], RMS_NORM_EPS)
        self._head = Linear(self._embedding)
        self._cos, self._sin = rope_tables(MAX_MODEL_LEN)

    def forward(self, batch: Batch) -> Tensor:
        """Keys and values of all tokens go into the cache; only the sampled rows reach the head."""
        hidden = self._embedding[batch.token_ids].to(torch.float32)
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        for layer in self.layers:
            hidden = layer.forward(hidden, cos, sin, batch)
        return self._head(self._norm(hidden[batch.sample_rows]))


def _below(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in weights.items() if name.startswith(prefix)}
