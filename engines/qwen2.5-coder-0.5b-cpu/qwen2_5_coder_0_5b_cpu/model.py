"""The decoder: from token ids to logits."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from .attention import Attention, KVCache
from .batch import Batch
from .config import MAX_MODEL_LEN, NUM_LAYERS, RMS_NORM_EPS
from .layers import Linear, RMSNorm, SwiGLU, rope_tables


class DecoderLayer:
    """Attention, then the feed-forward block; each reads the normed stream and adds to the raw one."""

    def __init__(self, weights: Mapping[str, Tensor], kv_cache: KVCache, layer: int) -> None:
        """weights: the checkpoint's names below `model.layers.<layer>.`"""
        self.input_layernorm = RMSNorm(weights["input_layernorm.weight"], RMS_NORM_EPS)
        self.self_attn = Attention(_below("self_attn.", weights), kv_cache, layer)
        self.post_attention_layernorm = RMSNorm(weights["post_attention_layernorm.weight"], RMS_NORM_EPS)
        self.mlp = SwiGLU(*(weights[f"mlp.{name}_proj.weight"] for name in ("gate", "up", "down")))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """x: [tokens, hidden] fp32; cos, sin: [tokens, head_dim] fp32 -> [tokens, hidden] fp32"""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, batch)
        return x + self.mlp(self.post_attention_layernorm(x))


class CausalLM:
    """The model: `layers` between the embedding and the head."""

    def __init__(self, weights: Mapping[str, Tensor], kv_cache: KVCache) -> None:
        self.embed_tokens = weights["model.embed_tokens.weight"]  # [vocab, hidden]
        self.layers = [
            DecoderLayer(_below(f"model.layers.{layer}.", weights), kv_cache, layer) for layer in range(NUM_LAYERS)
        ]
        self.norm = RMSNorm(weights["model.norm.weight"], RMS_NORM_EPS)
        self.lm_head = Linear(weights["lm_head.weight"])
        self.cos, self.sin = rope_tables(MAX_MODEL_LEN)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [samples, vocab] fp32 of the batch's sample rows; writes the KV cache of all its tokens."""
        x = self.embed_tokens[batch.token_ids]
        x = x.float()
        cos, sin = self.cos[batch.positions], self.sin[batch.positions]
        for layer in self.layers:
            x = layer.forward(x, cos, sin, batch)
        return self.lm_head(self.norm(x[batch.sample_rows]))


def _below(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights whose names begin with `prefix`, named without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
