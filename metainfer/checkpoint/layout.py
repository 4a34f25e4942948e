"""Which tensors a model of given facts consists of, by name and shape: those of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shape = tuple[int, ...]
HEAD_NAME = "lm_head.weight"


def expected_shapes(config: Mapping[str, Any], *, biased: bool) -> dict[str, Shape]:
    """Every tensor of the model by name. `config` has the keys of config.json; `biased` is about q, k and v."""
    hidden, ffn, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    width, kv_width = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes[HEAD_NAME] = (config["vocab_size"], hidden)
    layer: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (width, hidden),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.o_proj.weight": (hidden, width),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if biased:
        layer |= {f"self_attn.{name}_proj.bias": (n,) for name, n in (("q", width), ("k", kv_width), ("v", kv_width))}
    if config["model_type"] == "qwen3":
        layer |= {f"self_attn.{name}_norm.weight": (head,) for name in "qk"}
    return shapes | {
        f"model.layers.{index}.{name}": shape
        for index in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
