"""Conversion of GGUF files: the values, the maths that transformers makes of them, and what is refused."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer

from metainfer.checkpoint.facts import ConfigRefusedError, read_facts
from metainfer.checkpoint.gguf import convert, to_bf16
from metainfer.checkpoint.gguf_tokenizer import write_tokenizer
from metainfer.errors import InputError, MetainferError
from metainfer.progress import Silent

from .gguf_files import Gguf, byte_names, gguf

NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
NAMES |= {"attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
NAMES |= {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
NAMES |= {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

__all__ = ["gguf"]  # the fixture


def transformers_name(name: str) -> str:
    if not name.startswith("blk."):
        stem, _, end = name.rpartition(".")
        return f"{TOP[stem]}.{end}"
    _, layer, stem, end = name.split(".")
    return f"model.layers.{layer}.{NAMES[stem]}.{end}"


def converted(gguf: Gguf, tmp_path: Path) -> Path:
    out = tmp_path / "model"
    out.mkdir()
    convert(gguf.write(tmp_path / "m.gguf"), out, Silent())
    return out


@given(
    st.lists(
        st.integers(0, 2**32 - 1).map(lambda bits: np.uint32(bits).view(np.float32)).filter(np.isfinite), min_size=1
    )
)
def test_rounding_to_bf16_is_that_of_torch(values: list[np.float32]) -> None:
    array = np.array(values, np.float32)
    expected = torch.from_numpy(array).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bf16(array), expected)


def mixed(name: str, shape: tuple[int, ...]) -> str:
    """The mix of the demo's file: 256 columns for the k-quants, the rest in blocks of 32."""
    if len(shape) == 1:
        return "F32"
    if shape[1] % 256 == 0:
        return "Q6_K" if "blk.0" in name else "Q4_K"
    return {"output.weight": "Q8_0", "token_embd.weight": "Q5_0"}.get(name, "Q5_1")


@pytest.mark.parametrize(
    ("architecture", "tied", "quantise", "dtype"),
    [
        ("qwen2", False, mixed, torch.bfloat16),
        ("qwen3", True, mixed, torch.bfloat16),
        ("qwen2", True, lambda name, shape: "F32", torch.float32),
        ("qwen3", False, lambda name, shape: "F16" if len(shape) > 1 else "F32", torch.float16),
        ("qwen2", False, lambda name, shape: "BF16" if len(shape) > 1 else "F32", torch.bfloat16),
        ("qwen2", False, lambda name, shape: "F32" if "output" in name or len(shape) == 1 else "F16", torch.bfloat16),
    ],
    ids=["mixed quants", "mixed quants, tied", "fp32", "fp16", "bf16", "fp32 and fp16"],
)
def test_every_tensor_is_dequantised_and_rounded_once(
    architecture: str, tied: bool, quantise: Any, dtype: torch.dtype, gguf: Gguf, tmp_path: Path
) -> None:
    gguf.architecture, gguf.tied, gguf.quantise = architecture, tied, quantise
    out = converted(gguf, tmp_path)
    tensors = load_file(out / "model.safetensors")
    assert set(tensors) == {transformers_name(name) for name in gguf.values}
    for name, values in gguf.values.items():
        tensor = tensors[transformers_name(name)]
        assert tensor.dtype == dtype
        assert torch.equal(tensor, torch.from_numpy(values.copy()).to(dtype))
    facts = read_facts(out)
    assert (facts.architecture, facts.tie_word_embeddings, facts.head_dim) == (architecture, tied, gguf.head_dim)
    assert (facts.attention_bias, facts.qk_norm) == (architecture == "qwen2", architecture == "qwen3")


@pytest.mark.parametrize(("architecture", "tied"), [("qwen2", False), ("qwen3", True)])
def test_transformers_computes_the_same_logits_from_the_folder_as_from_the_values(
    architecture: str, tied: bool, gguf: Gguf, tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    gguf.architecture, gguf.tied, gguf.quantise = architecture, tied, mixed
    out = converted(gguf, tmp_path)
    loaded, report = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(gguf.tokens),
        hidden_size=gguf.hidden,
        intermediate_size=gguf.ffn,
        num_hidden_layers=gguf.layers,
        num_attention_heads=gguf.heads,
        num_key_value_heads=gguf.kv_heads,
        head_dim=gguf.head_dim,
        max_position_embeddings=128,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=tied,
    )
    expected = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state = {
        transformers_name(name): torch.from_numpy(values.copy()).to(torch.bfloat16).float()
        for name, values in gguf.values.items()
    }
    expected.load_state_dict(state, strict=not tied)
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, expected.eval()(tokens).logits)


def test_the_same_file_gives_the_same_bytes(gguf: Gguf, tmp_path: Path) -> None:
    from metainfer.files import folder_digest

    path = gguf.write(tmp_path / "m.gguf")
    digests = set()
    for name in "ab":
        (tmp_path / name).mkdir()
        convert(path, tmp_path / name, Silent())
        digests.add(folder_digest(tmp_path / name))
    assert len(digests) == 1


def test_eps_and_theta_are_the_decimals_that_were_rounded_to_fp32(gguf: Gguf, tmp_path: Path) -> None:
    config = json.loads((converted(gguf, tmp_path) / "config.json").read_bytes())
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-6, 1e6)
    assert np.float32(config["rms_norm_eps"]) == np.float32(9.999999974752427e-07)


# The tokenizer


def test_transformers_and_tokenizers_read_the_ids_of_the_file(gguf: Gguf, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    out = converted(gguf, tmp_path)
    raw, auto = Tokenizer.from_file(str(out / "tokenizer.json")), AutoTokenizer.from_pretrained(out)
    for index, (token, type_) in enumerate(zip(gguf.tokens, gguf.types, strict=True)):
        assert raw.token_to_id(token) == (None if type_ == 5 else index)
    text = "hello world<|im_start|>user\n<tool> Größe 日本 123<|im_end|>"
    ids = raw.encode(text).ids
    assert ids == auto.encode(text)
    assert ids[0] == gguf.tokens.index("hello")
    assert {gguf.tokens.index(token) for token in ("<|im_start|>", "<tool>", "<|im_end|>")} <= set(ids)
    assert raw.decode(ids, skip_special_tokens=False) == text
    assert raw.decode(ids) == "hello worlduser\n<tool> Größe 日本 123"
    assert auto.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == (
        "<|im_start|>user\nhi<|im_end|>\n"
    )


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Without merges: every byte is a token."""
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*byte_names(), "<|endoftext|>"],
        "tokenizer.ggml.token_type": [1] * 256 + [3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 256,
    }
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(Path("m.gguf"), fields, folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@given(st.text(max_size=40))
def test_any_text_survives_the_tokenizer_in_its_composed_form(byte_tokenizer: Tokenizer, text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    ids = byte_tokenizer.encode(text).ids
    assert [byte_names()[byte] for byte in composed.encode()] == [byte_tokenizer.id_to_token(token) for token in ids]
    assert byte_tokenizer.decode(ids, skip_special_tokens=False) == composed


@pytest.mark.parametrize(
    ("fields", "ends"),
    [
        ({}, ["<|im_end|>", "<|endoftext|>"]),
        ({"tokenizer.ggml.eos_token_id": 261}, ["<|endoftext|>", "<|im_end|>"]),
        ({"tokenizer.ggml.eot_token_id": 262}, ["<|im_end|>", "<|im_start|>", "<|endoftext|>"]),
    ],
)
def test_all_ends_of_turns_and_texts_end_generation_the_named_ones_first(
    fields: dict[str, Any], ends: list[str], gguf: Gguf, tmp_path: Path
) -> None:
    gguf.fields = fields
    facts = read_facts(converted(gguf, tmp_path))
    assert [gguf.tokens[token] for token in facts.eos_token_ids] == ends
    generation = json.loads((tmp_path / "model/generation_config.json").read_bytes())
    assert generation["pad_token_id"] == gguf.tokens.index("<|endoftext|>")


def test_an_ordinary_token_that_reads_like_a_marker_ends_nothing(gguf: Gguf, tmp_path: Path) -> None:
    gguf.types[gguf.tokens.index("<|endoftext|>")] = 1
    assert read_facts(converted(gguf, tmp_path)).eos_token_ids == (gguf.tokens.index("<|im_end|>"),)


# Refusals


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"qwen2.rope.scaling.type": "yarn"}, ConfigRefusedError, r"rope\.scaling\.type = 'yarn'"),
        ({"qwen2.rope.scaling.factor": 4.0}, ConfigRefusedError, r"rope\.scaling\.factor = 4\.0"),
        ({"qwen2.attention.sliding_window": 64}, ConfigRefusedError, r"attention\.sliding_window = 64"),
        ({"qwen2.attention.value_length": 8}, ConfigRefusedError, "value_length = 8: only 16"),
        ({"qwen2.rope.dimension_count": 8}, ConfigRefusedError, "dimension_count = 8: only 16"),
        ({"qwen2.expert_count": 8}, ConfigRefusedError, "expert_count = 8"),
        ({"split.count": 2}, ConfigRefusedError, "split GGUF"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, ConfigRefusedError, "llama-bpe"),
        ({"tokenizer.ggml.model": "llama"}, ConfigRefusedError, "'llama'"),
        ({"tokenizer.ggml.add_bos_token": True}, ConfigRefusedError, "add_bos_token"),
        ({"tokenizer.ggml.eos_token_id": None}, InputError, "never end"),
        ({"tokenizer.ggml.eos_token_id": 5000}, InputError, "eos_token_id is 5000"),
        ({"tokenizer.ggml.merges": ["q qqq"]}, InputError, "do not fit together"),
        ({"tokenizer.ggml.merges": None}, InputError, "merges is missing"),
        ({"qwen2.block_count": None}, InputError, "block_count is None"),
        ({"qwen2.block_count": 3}, InputError, r"12 tensors are missing, among them model\.layers\.2\."),
        ({"qwen2.block_count": 1}, InputError, r"no place for: model\.layers\.1\."),
        (
            {"qwen2.embedding_length": 32},
            InputError,
            r"embed_tokens\.weight is \[272, 64\]; the metadata says \[272, 32\]",
        ),
        ({"qwen2.attention.layer_norm_rms_epsilon": 0.0}, InputError, "rms_epsilon is 0.0"),
        ({"qwen2.rope.freq_base": float("nan")}, InputError, "freq_base is nan"),
    ],
)
def test_what_is_missing_wrong_or_unknown_is_refused_by_name(
    fields: dict[str, Any], error: type[MetainferError], message: str, gguf: Gguf, tmp_path: Path
) -> None:
    gguf.fields = fields
    with pytest.raises(error, match=message):
        converted(gguf, tmp_path)


def test_another_architecture_is_refused_by_name(gguf: Gguf, tmp_path: Path) -> None:
    gguf.fields = {"general.architecture": "llama"}
    with pytest.raises(ConfigRefusedError, match=r"general\.architecture = 'llama': covered are qwen2, qwen3"):
        converted(gguf, tmp_path)


def test_a_tensor_that_no_knowledge_covers_is_refused_by_name(gguf: Gguf, tmp_path: Path) -> None:
    shapes = gguf.shapes
    gguf.shapes = lambda: {**shapes(), "rope_freqs.weight": (8,)}  # type: ignore[method-assign]
    with pytest.raises(ConfigRefusedError, match=r"rope_freqs\.weight"):
        converted(gguf, tmp_path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_refused_by_the_name_of_its_tensor(bad: float, gguf: Gguf, tmp_path: Path) -> None:
    path = gguf.write(tmp_path / "m.gguf")
    from gguf import GGUFReader

    offset = next(t.data_offset for t in GGUFReader(path).tensors if t.name == "blk.1.ffn_norm.weight")
    with path.open("r+b") as stream:
        stream.seek(offset + 20)
        stream.write(np.float32(bad).tobytes())
    (tmp_path / "model").mkdir()
    with pytest.raises(InputError, match=r"blk\.1\.ffn_norm\.weight holds values that are no finite numbers"):
        convert(path, tmp_path / "model", Silent())
