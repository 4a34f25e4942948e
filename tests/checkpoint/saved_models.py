"""Tiny models as transformers itself saves them, for tests that change files in their folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metainfer.checkpoint.random_model import write_byte_tokenizer

QWEN2: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "eos_token_id": 258,
    "initializer_range": 0.5,
}
QWEN3: dict[str, Any] = {
    **QWEN2,
    "model_type": "qwen3",
    "head_dim": 20,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}


def save_with_transformers(out: Path, config: dict[str, Any], *, dtype: str = "float32", **how: Any) -> Path:
    """A seeded model, norms and biases away from their constants; `how` goes to save_pretrained."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.data += 0.2 * torch.randn_like(parameter)
    model.to(getattr(torch, dtype)).save_pretrained(out, **how)
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256], "pad_token_id": 256}))
    write_byte_tokenizer(out)
    return out


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_bytes())
    change(data)
    path.write_text(json.dumps(data))
