"""Facts of a folder: read as transformers means them, and refused by name where nothing understands them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from metainfer.checkpoint.facts import ConfigRefusedError, read_facts
from metainfer.errors import ExitCode, InputError, MetainferError
from tests.checkpoint.saved_models import QWEN2, QWEN3, edit_json, save_with_transformers


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "qwen2": save_with_transformers(tmp_path_factory.mktemp("qwen2"), QWEN2),
        "qwen3": save_with_transformers(tmp_path_factory.mktemp("qwen3"), QWEN3, dtype="bfloat16"),
    }


@pytest.fixture
def qwen2(saved: dict[str, Path], tmp_path: Path) -> Path:
    """An untied Qwen2 in fp32: a folder of the test's own."""
    return Path(shutil.copytree(saved["qwen2"], tmp_path / "qwen2"))


@pytest.fixture
def qwen3(saved: dict[str, Path], tmp_path: Path) -> Path:
    """A tied Qwen3 in bf16, its head_dim not hidden_size / heads: a folder of the test's own."""
    return Path(shutil.copytree(saved["qwen3"], tmp_path / "qwen3"))


def config_set(folder: Path, **values: Any) -> None:
    edit_json(folder / "config.json", lambda config: config.update(values))


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Set or (None) drop tensors of the folder's one file; `__` in a name stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        key = name.replace("__", ".")
        if tensor is None:
            del tensors[key]
        else:
            tensors[key] = tensor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_an_untied_qwen2_is_read(qwen2: Path) -> None:
    facts = read_facts(qwen2)
    hidden, ffn, vocab, kv = 48, 80, 300, 2 * 12
    layer = 2 * hidden + hidden * hidden * 2 + hidden + 2 * (hidden * kv + kv) + 3 * hidden * ffn
    assert facts.model_dump() == {
        "architecture": "qwen2",
        "vocab_size": 300,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "qk_norm": False,
        "eos_token_ids": (258, 256),
        "bos_token_id": None,
        "pad_token_id": None,
        "sharded": False,
        "has_chat_template": True,
        "source_dtype": "fp32",
        "num_parameters": 2 * vocab * hidden + 2 * layer + hidden,
        "weight_bytes": 4 * (2 * vocab * hidden + 2 * layer + hidden),
    }


def test_a_tied_qwen3_keeps_its_own_head_dim(qwen3: Path) -> None:
    facts = read_facts(qwen3)
    assert (facts.head_dim, facts.rope_theta, facts.qk_norm, facts.attention_bias) == (20, 5e5, True, False)
    assert (facts.tie_word_embeddings, facts.source_dtype) == (True, "bf16")
    assert facts.weight_bytes == 2 * facts.num_parameters


def test_shards_are_one_model(tmp_path: Path) -> None:
    whole = read_facts(save_with_transformers(tmp_path / "whole", QWEN2))
    folder = save_with_transformers(tmp_path / "shards", QWEN2, max_shard_size="60KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    facts = read_facts(folder)
    assert facts.sharded
    assert facts.model_copy(update={"sharded": False}) == whole


def test_keys_of_transformers_4_mean_the_same(qwen3: Path) -> None:
    expected = read_facts(qwen3)

    def downgrade(config: dict[str, Any]) -> None:
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["rope_scaling"] = None
        config["torch_dtype"] = config.pop("dtype")
        config["transformers_version"] = "4.51.0"
        del config["layer_types"]

    edit_json(qwen3 / "config.json", downgrade)
    assert read_facts(qwen3) == expected


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (None, 5, (5,)),
        (7, 5, (7, 5)),
        ([7, 5], 5, (7, 5)),
        ([7, 8], [5, 8], (7, 8, 5)),
        (9, None, (9,)),
    ],
)
def test_every_end_token_of_both_files_counts(qwen2: Path, generation: Any, config: Any, expected: Any) -> None:
    edit_json(qwen2 / "generation_config.json", lambda data: data.update(eos_token_id=generation))
    config_set(qwen2, eos_token_id=config)
    assert read_facts(qwen2).eos_token_ids == expected


def test_a_folder_without_generation_config_takes_the_config_s_end(qwen2: Path) -> None:
    (qwen2 / "generation_config.json").unlink()
    assert read_facts(qwen2).eos_token_ids == (258,)


def test_a_chat_template_may_stand_in_the_tokenizer_s_config(qwen2: Path) -> None:
    (qwen2 / "chat_template.jinja").unlink()
    assert not read_facts(qwen2).has_chat_template
    edit_json(qwen2 / "tokenizer_config.json", lambda data: data.update(chat_template="{{ messages }}"))
    assert read_facts(qwen2).has_chat_template


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ({"text_config": {"tie_word_embeddings": True}}, "text_config"),
        ({"use_mrope": True}, "use_mrope"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"architectures": None}, "architectures"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.*llama3"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.*yarn"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "rope_parameters.*yarn"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention"),
        ({"model_type": "qwen3"}, "model_type"),
    ],
)
def test_what_no_knowledge_covers_is_refused_by_name(qwen2: Path, values: dict[str, Any], named: str) -> None:
    config_set(qwen2, **values)
    with pytest.raises(ConfigRefusedError, match=f"config.json: .*{named}") as caught:
        read_facts(qwen2)
    assert caught.value.exit_code == ExitCode.REFUSED


def test_another_architecture_is_refused_by_its_name_and_not_by_a_key_of_its_own(qwen2: Path) -> None:
    config_set(qwen2, architectures=["LlamaForCausalLM"], model_type="llama", mlp_bias=False, pretraining_tp=1)
    with pytest.raises(ConfigRefusedError) as caught:
        read_facts(qwen2)
    assert str(caught.value) == (
        f"{qwen2}/config.json: architectures = [\"LlamaForCausalLM\"] (model_type 'llama'): not covered; "
        "covered are Qwen2ForCausalLM (qwen2), Qwen3ForCausalLM (qwen3)"
    )


def test_all_refused_keys_come_at_once(qwen2: Path) -> None:
    config_set(qwen2, hidden_act="gelu", use_sliding_window=True, strange=1)
    with pytest.raises(ConfigRefusedError) as caught:
        read_facts(qwen2)
    assert len(str(caught.value).splitlines()) == 3


def test_an_unused_window_and_keys_that_say_no_are_no_obstacle(qwen2: Path) -> None:
    expected = read_facts(qwen2)
    config_set(qwen2, sliding_window=4096, use_sliding_window=False, max_window_layers=1, use_mrope=False)
    assert read_facts(qwen2) == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "48"),
        ("hidden_size", True),
        ("num_attention_heads", 0),
        ("num_key_value_heads", -2),
        ("num_key_value_heads", 3),
        ("num_hidden_layers", 2.5),
        ("head_dim", "12"),
        ("rms_norm_eps", "small"),
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", None),
        ("rope_parameters", {"rope_theta": 0}),
        ("rope_parameters", {"rope_theta": "1e4"}),
        ("eos_token_id", "</s>"),
        ("eos_token_id", 300),
        ("eos_token_id", -1),
        ("eos_token_id", True),
        ("bos_token_id", "x"),
        ("architectures", 5),
        ("tie_word_embeddings", "no"),
    ],
)
def test_a_damaged_value_is_named(qwen2: Path, key: str, value: Any) -> None:
    config_set(qwen2, **{key: value})
    with pytest.raises(MetainferError, match=key if key != "rope_parameters" else "rope_theta"):
        read_facts(qwen2)


@pytest.mark.parametrize("key", ["rms_norm_eps", "vocab_size", "num_attention_heads", "rope_parameters"])
def test_a_missing_key_is_named(qwen2: Path, key: str) -> None:
    edit_json(qwen2 / "config.json", lambda config: config.pop(key))
    with pytest.raises(InputError, match=key if key != "rope_parameters" else "rope_theta"):
        read_facts(qwen2)


def test_no_end_token_anywhere_is_an_error(qwen2: Path) -> None:
    edit_json(qwen2 / "generation_config.json", lambda data: data.pop("eos_token_id"))
    config_set(qwen2, eos_token_id=None)
    with pytest.raises(InputError, match="eos_token_id"):
        read_facts(qwen2)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(qwen2: Path, name: str) -> None:
    (qwen2 / name).unlink()
    with pytest.raises(InputError, match=name):
        read_facts(qwen2)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b'{"a": NaN}'])
def test_a_config_that_is_no_json_object_is_an_error(qwen2: Path, content: bytes) -> None:
    (qwen2 / "config.json").write_bytes(content)
    with pytest.raises(MetainferError, match=r"config\.json"):
        read_facts(qwen2)


def test_a_bias_beyond_q_k_and_v_is_refused_by_name(qwen2: Path) -> None:
    change_tensors(qwen2, model__layers__0__self_attn__o_proj__bias=torch.zeros(48))
    with pytest.raises(ConfigRefusedError, match="o_proj"):
        read_facts(qwen2)


def test_a_bias_that_one_layer_lacks_is_named(qwen2: Path) -> None:
    change_tensors(qwen2, model__layers__1__self_attn__k_proj__bias=None)
    with pytest.raises(InputError, match=r"model\.layers\.1\.self_attn\.k_proj\.bias"):
        read_facts(qwen2)


def test_a_qwen2_without_biases_is_refused(qwen2: Path) -> None:
    names = [name for name in load_file(qwen2 / "model.safetensors") if name.endswith(".bias")]
    change_tensors(qwen2, **dict.fromkeys(names))
    with pytest.raises(ConfigRefusedError, match="biases"):
        read_facts(qwen2)


@pytest.mark.parametrize(
    "name",
    ["lm_head.weight", "model.norm.weight", "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"],
)
def test_a_missing_tensor_is_named(qwen2: Path, name: str) -> None:
    change_tensors(qwen2, **{name: None})
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        read_facts(qwen2)


@pytest.mark.parametrize("name", ["model.layers.2.mlp.up_proj.weight", "model.rotary_emb.inv_freq", "score.weight"])
def test_a_tensor_that_nothing_reads_is_refused_by_name(qwen2: Path, name: str) -> None:
    change_tensors(qwen2, **{name: torch.zeros(80, 48)})
    with pytest.raises(ConfigRefusedError, match=name.replace(".", r"\.")):
        read_facts(qwen2)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(qwen2: Path) -> None:
    change_tensors(qwen2, lm_head__weight=torch.zeros(299, 48))
    with pytest.raises(InputError, match=r"lm_head\.weight is \[299, 48\], config\.json makes it \[300, 48\]"):
        read_facts(qwen2)


def test_a_head_dim_that_the_tensors_deny_is_named(qwen2: Path) -> None:
    config_set(qwen2, head_dim=7)
    with pytest.raises(InputError, match=r"q_proj\.weight is \[48, 48\], config\.json makes it \[28, 48\]"):
        read_facts(qwen2)


def test_a_qwen3_without_head_dim_is_refused_since_transformers_would_guess(qwen3: Path) -> None:
    edit_json(qwen3 / "config.json", lambda config: config.pop("head_dim"))
    with pytest.raises(InputError, match="head_dim"):
        read_facts(qwen3)


def test_a_tied_model_may_carry_its_head_or_not(qwen3: Path) -> None:
    without = read_facts(qwen3)
    embedding = load_file(qwen3 / "model.safetensors")["model.embed_tokens.weight"]
    change_tensors(qwen3, lm_head__weight=embedding.clone())
    with_head = read_facts(qwen3)
    assert with_head.tie_word_embeddings
    assert with_head.num_parameters == without.num_parameters + embedding.numel()


def test_norms_may_be_wider_than_matrices_and_matrices_must_agree(qwen3: Path) -> None:
    change_tensors(qwen3, model__norm__weight=torch.ones(48, dtype=torch.float32))
    assert read_facts(qwen3).source_dtype == "bf16"
    change_tensors(qwen3, model__layers__0__mlp__up_proj__weight=torch.ones(80, 48, dtype=torch.float16))
    with pytest.raises(ConfigRefusedError, match="matrices in BF16, F16"):
        read_facts(qwen3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    key=st.sampled_from([*sorted(QWEN2), "head_dim", "rope_parameters", "layer_types", "architectures", "dtype"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
        max_leaves=3,
    ),
)
def test_any_value_of_any_key_gives_facts_or_a_named_error(
    saved: dict[str, Path], qwen2: Path, key: str, value: Any
) -> None:
    config = json.loads((saved["qwen2"] / "config.json").read_bytes())
    (qwen2 / "config.json").write_text(json.dumps({**config, key: value}))
    try:
        read_facts(qwen2)
    except MetainferError as error:
        assert str(qwen2) in str(error)  # noqa: PT017


def test_layers_by_the_billion_are_refused_without_listing_them(qwen2: Path) -> None:
    config_set(qwen2, num_hidden_layers=10**9, layer_types=None)
    with pytest.raises(InputError, match=r"27 tensors cannot be 1,000,000,000 layers \(num_hidden_layers\)"):
        read_facts(qwen2)
