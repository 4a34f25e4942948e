"""The tokenizer of a GGUF as the files that transformers and tokenizers read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metainfer.checkpoint.facts import ConfigRefusedError
from metainfer.errors import InputError
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
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; return generation_config.json's content.

    Raises InputError if keys are missing or disagree, ConfigRefusedError for a tokenizer of another kind.
    """
    kind, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split not in _SPLITS:
        raise ConfigRefusedError(f"{file}: tokenizer {kind!r} with pre-tokenizer {split!r}: not covered")
    for key in ("add_bos_token", "add_eos_token"):
        if fields.get(f"tokenizer.ggml.{key}"):
            raise ConfigRefusedError(f"{file}: tokenizer.ggml.{key} = true: not covered")
    tokens, types = _list(file, fields, "tokens", str), _list(file, fields, "token_type", int)
    if len(tokens) != len(types) or len(set(tokens)) != len(tokens):
        raise InputError(f"{file}: {len(tokens)} tokens, {len(set(tokens))} of them different, {len(types)} types")
    if strange := sorted(set(types) - {_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED}):
        raise ConfigRefusedError(f"{file}: token types {strange}: not covered")
    _write_tokenizer_json(file, tokens, types, _list(file, fields, "merges", str), _SPLITS[split], out)
    generation = _generation_config(file, fields, tokens, types)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokens[generation["eos_token_id"][0]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    if "pad_token_id" in generation:
        config["pad_token"] = tokens[generation["pad_token_id"]]
    (out / "tokenizer_config.json").write_bytes(pretty_json(config))
    if template := fields.get("tokenizer.chat_template"):
        (out / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")
    return generation


def _list(file: Path, fields: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    value = fields.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise InputError(f"{file}: tokenizer.ggml.{key} is missing, or not a list of {kind.__name__}")
    return value


def _write_tokenizer_json(
    file: Path, tokens: list[str], types: list[int], merges: list[str], split: str, out: Path
) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocab = {token: index for index, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ != _UNUSED}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    except Exception as error:  # tokenizers raises bare Exception: a merge of tokens that are not in the vocabulary
        raise InputError(f"{file}: the tokenizer's merges and tokens do not fit together: {error}") from error
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


def _generation_config(file: Path, fields: Mapping[str, Any], tokens: list[str], types: list[int]) -> dict[str, Any]:
    """Every token that ends generation: those the file names (end of sequence, turn, message; in this order), then
    the control tokens of the vocabulary that this family ends a turn or a text by.

    A name alone is not enough: an ordinary token that only reads like a marker is text.
    """
    ids = {key: _token_id(file, fields, key, len(tokens)) for key in ("eos", "eot", "eom", "padding", "bos")}
    if ids["eos"] is None:
        raise InputError(f"{file}: tokenizer.ggml.eos_token_id is missing; generation would never end")
    control = {
        token: index for index, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ == _CONTROL
    }
    ends = [ids[key] for key in ("eos", "eot", "eom") if ids[key] is not None]
    ends += [control[marker] for marker in _END_MARKERS if marker in control]
    config: dict[str, Any] = {"eos_token_id": list(dict.fromkeys(ends))}
    for key, source in (("pad_token_id", "padding"), ("bos_token_id", "bos")):
        if ids[source] is not None:
            config[key] = ids[source]
    return config


def _token_id(file: Path, fields: Mapping[str, Any], key: str, count: int) -> int | None:
    value = fields.get(f"tokenizer.ggml.{key}_token_id")
    if value is not None and not (isinstance(value, int) and 0 <= value < count):
        raise InputError(f"{file}: tokenizer.ggml.{key}_token_id is {value!r}; the vocabulary has {count:,} tokens")
    return value
