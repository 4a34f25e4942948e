"""A tiny random model folder, and the facts of its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from metainfer.checkpoint.facts import ModelFacts

settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")

VOCAB = 300
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def model_facts(**changes: Any) -> ModelFacts:
    """The facts of the tiny Qwen2, or of one that differs from it."""
    rest = {
        "architecture": "qwen2",
        "attention_bias": True,
        "qk_norm": False,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "max_position_embeddings": 512,
        "eos_token_ids": (VOCAB - 1,),
        "sharded": False,
        "has_chat_template": False,
        "source_dtype": "fp32",
        "num_parameters": 0,
        "weight_bytes": 0,
    }
    return ModelFacts(**(SHAPE | rest | changes))


def tiny_config(**changes: Any) -> Any:
    from transformers import Qwen2Config

    shape = {key: value for key, value in SHAPE.items() if key != "head_dim"}
    return Qwen2Config(
        **(shape | {"max_position_embeddings": 512, "tie_word_embeddings": False, "eos_token_id": VOCAB - 1} | changes)
    )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 of 24,000 weights, with a tokenizer of single bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("tiny-qwen2")
    torch.manual_seed(7)
    Qwen2ForCausalLM(tiny_config()).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: place for place, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
