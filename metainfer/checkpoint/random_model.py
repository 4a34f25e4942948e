"""Seeded random models for tests: real files that transformers made, with a tokenizer over bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metainfer.errors import InputError
from metainfer.files import pretty_json

RECIPE = 2
"""Raised whenever the same config and seed come to give other weights, so that no cache answers with the old ones."""
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_BYTES = 256
MIN_VOCAB_SIZE = _BYTES + len(_SPECIAL_TOKENS)
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_DTYPES = ("float32", "bfloat16", "float16")
_INITIALIZER_RANGE = 0.25
"""Wide enough that layers matter: with the usual 0.02 a tiny model's logits hardly depend on its context. Not so wide
that each query sees one key alone, where rounding decides which, and a bias nothing."""


def make_random_model(config: Mapping[str, Any], seed: int, out: Path) -> None:
    """Fill `out` with a model of the given config.json, its weights drawn by transformers after seeding torch.

    Two keys are not the model's own: `dtype` (default bfloat16) is what the weights are rounded to, `max_shard_size`
    cuts them into several files. Raises InputError for a config that transformers refuses.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    vocab_size = config.get("vocab_size")
    if not isinstance(vocab_size, int) or vocab_size < MIN_VOCAB_SIZE:
        raise InputError(f"random model: vocab_size must be at least {MIN_VOCAB_SIZE}: all bytes and special tokens")
    values = {"initializer_range": _INITIALIZER_RANGE, **config}
    name, shard_size = str(values.pop("dtype", "bfloat16")), values.pop("max_shard_size", "5GB")
    if name not in _DTYPES:
        raise InputError(f"random model: dtype is {name!r}; one of {', '.join(_DTYPES)} is needed")
    end, turn = _BYTES, _BYTES + 2
    values |= {"eos_token_id": turn, "bos_token_id": None, "pad_token_id": end}
    try:
        parsed = AutoConfig.for_model(**values)
    except Exception as error:  # its validation raises classes of its own, different from release to release
        raise InputError(f"random model: transformers refuses the config: {error}") from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(parsed, dtype=torch.float32)  # type: ignore[no-untyped-call]
        # Norm weights and biases start at constants; a loader that skips them must not go unnoticed.
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.data += 0.2 * torch.randn_like(parameter)
    model.to(getattr(torch, name)).save_pretrained(out, max_shard_size=shard_size)
    _forget_version(out / "config.json")
    (out / "generation_config.json").write_bytes(pretty_json({"eos_token_id": [turn, end], "pad_token_id": end}))
    write_byte_tokenizer(out)


def _forget_version(path: Path) -> None:
    """Take the library's version out of config.json: another release must not make another model of the same seed."""
    config = json.loads(path.read_bytes())
    config.pop("transformers_version", None)
    path.write_bytes(pretty_json(config))


def write_byte_tokenizer(out: Path) -> None:
    """A byte-level tokenizer without merges: token i is byte i, then the special tokens of a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    # ByteLevel names each byte by a printable character; sorted by byte, so that id equals byte.
    names = _byte_characters()
    tokenizer = Tokenizer(models.BPE(vocab={name: byte for byte, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL_TOKENS])
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _SPECIAL_TOKENS[2],
        "pad_token": _SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "chat_template.jinja").write_text(_CHAT_TEMPLATE, encoding="utf-8")


def _byte_characters() -> list[str]:
    """The character that byte-level BPE writes for each byte: itself if printable, else one from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    shifted = iter(range(_BYTES, 2 * _BYTES))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(_BYTES)]
