"""The tokenizer of a GGUF as the files that transformers and tokenizers read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metainfer.checkpoint.facts import ConfigRefusedError
from metainfer.files import pretty_json

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
"""`tokenizer.ggml.token_type`: unused tokens only pad the vocabulary."""
_SPLITS = {
    # How Qwen2 and Qwen3 cut text before byte-pair merging: contractions, words, single digits, symbols, white space.
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
}
_END_MARKERS = ("<|im_end|>", "<|endoftext|>")
"""A GGUF names a single end-of-sequence token; models of this family end a turn by one and a text by the other."""


def write_tokenizer(file: Path, fields: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; return generation_config.json's content."""
    kind, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in _SPLITS:
        raise ConfigRefusedError(f"{file}: tokenizer {kind!r} with pre-tokenizer {split!r}: not covered")
    if fields.get("tokenizer.ggml.add_bos_token"):
        raise ConfigRefusedError(f"{file}: a tokenizer that adds a beginning-of-sequence token is not covered")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    if strange := sorted(set(types) - {_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED}):
        raise ConfigRefusedError(f"{file}: token types {strange}: not covered")
    _write_tokenizer_json(tokens, types, fields["tokenizer.ggml.merges"], _SPLITS[split], out)
    eos, pad = tokens[fields["tokenizer.ggml.eos_token_id"]], fields.get("tokenizer.ggml.padding_token_id")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    if pad is not None:
        config["pad_token"] = tokens[pad]
    (out / "tokenizer_config.json").write_bytes(pretty_json(config))
    if template := fields.get("tokenizer.chat_template"):
        (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    return _generation_config(fields, tokens, types)


def _write_tokenizer_json(tokens: list[str], types: list[int], merges: list[str], split: str, out: Path) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocab = {token: index for index, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ != _UNUSED}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for token, type_ in zip(tokens, types, strict=True):
        if type_ == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif type_ == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    tokenizer.save(str(out / "tokenizer.json"))


def _generation_config(fields: Mapping[str, Any], tokens: list[str], types: list[int]) -> dict[str, Any]:
    """Every token that ends generation: those the file names, and the family's other end marker."""
    named = [fields.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    control = {
        token: index for index, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ == _CONTROL
    }
    ends = [int(token) for token in named if token is not None]
    ends += [control[marker] for marker in _END_MARKERS if marker in control]
    config: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(ends))}
    for key, source in (("pad_token_id", "padding_token_id"), ("bos_token_id", "bos_token_id")):
        if (value := fields.get(f"tokenizer.ggml.{source}")) is not None:
            config[key] = int(value)
    return config
