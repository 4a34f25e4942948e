"""The decoder: layers over a hidden stream, and a head over the rows that are wanted."""

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import embedding

from .config import MAX_MODEL_LEN, NUM_LAYERS, RMS_NORM_EPS
from .units import Attention, Batch, KVCache, Linear, RMSNorm, SwiGLU, rope_tables


class DecoderLayer:
    """weights: names below `model.layers.<layer>.`; x: [tokens, hidden] fp32 -> [tokens, hidden] fp32."""

    def __init__(self, weights: Mapping[str, Tensor], kv_cache: KVCache, layer: int) -> None:
        own = {name.removeprefix("self_attn."): tensor for name, tensor in weights.items() if "self_attn." in name}
        self._attention = Attention(own, kv_cache, layer)
        self._mlp = SwiGLU(
            weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"], weights["mlp.down_proj.weight"]
        )
        self._norms = [
            RMSNorm(weights[f"{place}_layernorm.weight"], RMS_NORM_EPS) for place in ("input", "post_attention")
        ]

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """cos, sin: [tokens, head_dim] fp32, the rows of the batch's positions."""
        before, between = self._norms
        attended = self._attention(before(x), cos, sin, batch).add_(x)
        return self._mlp(between(attended)).add_(attended)


class CausalLM:
    """weights: what load_weights returns; forward gives [samples, vocab] fp32."""

    layers: list[DecoderLayer]

    def __init__(self, weights: Mapping[str, Tensor], kv_cache: KVCache) -> None:
        by_layer: list[dict[str, Tensor]] = [{} for _ in range(NUM_LAYERS)]
        for name, tensor in weights.items():
            if name.startswith("model.layers."):
                number, _, rest = name.removeprefix("model.layers.").partition(".")
                by_layer[int(number)][rest] = tensor
        self.layers = [DecoderLayer(own, kv_cache, number) for number, own in enumerate(by_layer)]
        self._words = weights["model.embed_tokens.weight"]
        self._to_logits = Linear(self._words)
        self._last_norm = RMSNorm(weights["model.norm.weight"], RMS_NORM_EPS)
        self._turns = rope_tables(MAX_MODEL_LEN)

    def forward(self, batch: Batch) -> Tensor:
        """Keys and values of all tokens go into the cache; only the sampled rows reach the head."""
        cos, sin = (table.index_select(0, batch.positions) for table in self._turns)
        stream = embedding(batch.token_ids, self._words).float()
        for layer in self.layers:
            stream = layer.forward(stream, cos, sin, batch)
        wanted = stream.index_select(0, batch.sample_rows)
        return self._to_logits(self._last_norm(wanted))
