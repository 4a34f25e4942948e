"""Random models: real, seeded, and wholly used by the forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from metainfer.checkpoint.facts import ModelFacts, read_facts
from metainfer.checkpoint.random_model import make_random_model
from metainfer.errors import InputError, RefusedError
from metainfer.files import folder_digest
from tests.checkpoint.saved_models import QWEN2, QWEN3


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
        ({"model_type": None}, "model_type is missing; one of qwen2, qwen3 is needed"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"hidden_size": -96}, "hidden_size is -96; a positive whole number is needed"),
        ({"hidden_size": 50}, "hidden_size is 50, no multiple of num_attention_heads = 4"),
        ({"hidden_size": 12}, "head_dim is 3; rotary embedding needs an even one"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 key-value heads"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers is 1,000,000; at most 1,000"),
        ({"initializer_range": -1}, "initializer_range is -1"),
        ({"max_shard_size": "much"}, "max_shard_size is 'much'"),
        ({"layer_types": "x"}, "transformers refuses the config: .*layer_types"),
        ({"_attn_implementation": "none"}, "transformers cannot make the model: "),
    ],
)
def test_a_config_that_makes_no_model_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        make_random_model({**QWEN2, **change}, 1, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type = 'llama': not covered; covered are qwen2, qwen3"),
        ({"model_type": "no-such-model"}, "model_type = 'no-such-model': not covered"),
        ({"model_type": ["qwen2"]}, "not covered"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"strange": 1}, "strange = 1: no knowledge says what this key does"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"vocab_size": 10**12}, "48,000,000,037,296 random weights take .* GB to make, and this machine has"),
    ],
)
def test_a_config_that_no_engine_can_serve_is_refused_before_anything_is_made(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match=message):
        make_random_model({**QWEN2, "tie_word_embeddings": True, **change}, 1, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("base", [QWEN2, QWEN3], ids=["qwen2", "qwen3"])
@pytest.mark.parametrize("change", [{}, {"tie_word_embeddings": True, "dtype": "float32"}], ids=["untied", "tied"])
def test_what_is_planned_is_what_is_made(base: dict[str, Any], change: dict[str, Any], tmp_path: Path) -> None:
    seen: list[ModelFacts] = []
    make_random_model({**base, **change}, 1, tmp_path, admit=seen.append)
    made = read_facts(tmp_path).model_dump(exclude={"eos_token_ids"})
    assert [facts.model_dump(exclude={"eos_token_ids"}) for facts in seen] == [made]


def test_whoever_does_not_admit_the_facts_stops_it(tmp_path: Path) -> None:
    def refuse(facts: ModelFacts) -> None:
        raise RefusedError("no")

    with pytest.raises(RefusedError):
        make_random_model(QWEN2, 1, tmp_path, admit=refuse)
    assert list(tmp_path.iterdir()) == []
