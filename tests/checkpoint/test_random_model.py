"""Random models: real, seeded, and wholly used by the forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from metainfer.checkpoint.facts import read_facts
from metainfer.checkpoint.random_model import make_random_model
from metainfer.errors import InputError
from metainfer.files import folder_digest
from tests.checkpoint.saved_models import QWEN2


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def test_the_seed_decides_every_byte(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(99)  # the caller's random state must not matter, nor be changed
        make_random_model(QWEN2, seed, tmp_path / name)
        after = torch.rand(1)
        torch.manual_seed(99)
        assert torch.equal(after, torch.rand(1))
    assert folder_digest(tmp_path / "a") == folder_digest(tmp_path / "b") != folder_digest(tmp_path / "c")


def test_the_release_of_transformers_is_not_part_of_the_model(random_qwen2: Path) -> None:
    assert "transformers_version" not in (random_qwen2 / "config.json").read_text(encoding="utf-8")


def test_facts_are_those_of_the_config(random_qwen2: Path, random_qwen3: Path) -> None:
    two, three = read_facts(random_qwen2), read_facts(random_qwen3)
    assert (two.architecture, two.source_dtype, two.sharded, two.tie_word_embeddings) == ("qwen2", "fp32", False, False)
    assert (three.architecture, three.source_dtype, three.sharded) == ("qwen3", "bf16", True)
    assert (three.head_dim, three.tie_word_embeddings) == (20, True)
    assert two.eos_token_ids == three.eos_token_ids == (258, 256)
    assert two.has_chat_template
    assert three.has_chat_template


@pytest.mark.parametrize("name", ["random_qwen2", "random_qwen3"])
def test_every_tensor_moves_the_logits(name: str, request: pytest.FixtureRequest) -> None:
    model = load(request.getfixturevalue(name))
    tokens = torch.arange(24)[None] * 7 % 256
    with torch.no_grad():
        before = model(tokens).logits
        for parameter_name, parameter in model.named_parameters():
            kept = parameter.data.clone()
            parameter.data += 0.1
            moved = (model(tokens).logits - before).abs().max()
            parameter.data = kept
            # A constant added to all keys of a head shifts all scores of a query alike: softmax does not see it.
            if not parameter_name.endswith("k_proj.bias"):
                assert moved > 1e-4, parameter_name


def test_token_ids_are_bytes_and_the_template_ends_in_the_assistants_turn(random_qwen2: Path) -> None:
    from transformers import AutoTokenizer

    raw, auto = Tokenizer.from_file(str(random_qwen2 / "tokenizer.json")), AutoTokenizer.from_pretrained(random_qwen2)
    text = "héllo \n\t世界"
    assert raw.encode(text).ids == auto.encode(text) == list(text.encode())
    assert raw.decode(list(range(32, 127))) == bytes(range(32, 127)).decode()
    ids = auto.apply_chat_template([{"role": "user", "content": "a"}], add_generation_prompt=True)["input_ids"]
    assert ids == [257, *b"user\na", 258, *b"\n", 257, *b"assistant\n"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 258}, "at least 259"),
        ({"vocab_size": "many"}, "at least 259"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"model_type": "no-such-model"}, "transformers refuses the config"),
        ({"model_type": None}, "transformers refuses the config"),
        ({"hidden_size": "wide"}, "transformers refuses the config"),
    ],
)
def test_a_config_that_makes_no_model_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        make_random_model({**QWEN2, **change}, 1, tmp_path)
