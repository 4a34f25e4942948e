"""Seeded random models for tests: real files that transformers made, with a tokenizer over bytes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metainfer.checkpoint.facts import (
    ARCHITECTURES,
    ConfigRefusedError,
    ModelFacts,
    Place,
    SourceDtype,
    planned_facts,
)
from metainfer.checkpoint.feasibility import RUNTIME_BYTES, InfeasibleError, memory_of_machine
from metainfer.errors import InputError
from metainfer.files import pretty_json

RECIPE = 2
"""Raised whenever the same config and seed come to give other weights, so that no cache answers with the old ones."""
_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_BYTES = 256
_END, _TURN = _BYTES, _BYTES + 2
MIN_VOCAB_SIZE = _BYTES + len(_SPECIAL_TOKENS)
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_DTYPES: dict[str, SourceDtype] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SHARD_SIZE = re.compile(r"[1-9][0-9]*([KMG]i?B)?", re.IGNORECASE)
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_MAX_LAYERS = 1000
"""More than any model has; each costs time and memory however small it is."""
_INITIALIZER_RANGE = 0.25
"""Wide enough that layers matter: with the usual 0.02 a tiny model's logits hardly depend on its context. Not so wide
that each query sees one key alone, where rounding decides which, and a bias nothing."""


def make_random_model(
    config: Mapping[str, Any],
    seed: int,
    out: Path,
    *,
    place: Place = lambda key: "random model",
    admit: Callable[[ModelFacts], object] = lambda facts: None,
) -> None:
    """Fill `out` with a model of the given config.json, its weights drawn by transformers after seeding torch.

    Two keys are not the model's own: `dtype` (default bfloat16) is what the weights are rounded to, `max_shard_size`
    cuts them into several files. `place` is where a key stands, for errors; `admit` sees the facts of the model before
    any of it is made, and may raise. Raises InputError for a config that makes no model, RefusedError for one that no
    knowledge covers or that this machine has no memory for.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    values = {"initializer_range": _INITIALIZER_RANGE, **config}
    dtype, shard_size = str(values.pop("dtype", "bfloat16")), values.pop("max_shard_size", "5GB")
    _check_own_keys(place, dtype, shard_size)
    parsed, facts = _planned(place, values, dtype)
    admit(facts)
    _require_memory(place, facts)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(parsed, dtype=torch.float32)  # type: ignore[no-untyped-call]
            # Norm weights and biases start at constants; a loader that skips them must not go unnoticed.
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.data += 0.2 * torch.randn_like(parameter)
    except Exception as error:  # whatever a key does that no check here knows of
        raise InputError(f"{place('')}: transformers cannot make the model: {_first_line(error)}") from error
    with _disk_errors(out):
        model.to(getattr(torch, dtype)).save_pretrained(out, max_shard_size=shard_size)
        write_byte_tokenizer(out)
    _forget_version(out / "config.json")
    ends = {"eos_token_id": [_TURN, _END], "pad_token_id": _END}
    (out / "generation_config.json").write_bytes(pretty_json(ends))


def _check_own_keys(place: Place, dtype: str, shard_size: object) -> None:
    if dtype not in _DTYPES:
        raise InputError(f"{place('dtype')}: dtype is {dtype!r}; one of {', '.join(_DTYPES)} is needed")
    if not _SHARD_SIZE.fullmatch(str(shard_size)):
        raise InputError(f"{place('max_shard_size')}: max_shard_size is {shard_size!r}; write it as 60KB or 5GB")


def _planned(place: Place, values: dict[str, Any], dtype: str) -> tuple[Any, ModelFacts]:
    """transformers' reading of the config, and the facts of the model that it makes: no tensor is made here."""
    from transformers import AutoConfig

    _check_architecture(place, values.get("model_type"))
    _check_numbers(place, values)
    values = values | {"eos_token_id": _TURN, "bos_token_id": None, "pad_token_id": _END}
    try:
        parsed = AutoConfig.for_model(**values)
    except Exception as error:  # its validation raises classes of its own, different from release to release
        raise InputError(f"{place('')}: transformers refuses the config: {_last_line(error)}") from error
    named = {"architectures": [name for name, kind in ARCHITECTURES.items() if kind == values["model_type"]]}
    facts = planned_facts(place, named | parsed.to_diff_dict(), _DTYPES[dtype])
    if facts.head_dim % 2:
        raise InputError(f"{place('head_dim')}: head_dim is {facts.head_dim}; rotary embedding needs an even one")
    return parsed, facts


def _check_architecture(place: Place, kind: object) -> None:
    covered = ", ".join(ARCHITECTURES.values())
    if kind is None:
        raise InputError(f"{place('')}: model_type is missing; one of {covered} is needed")
    if kind not in ARCHITECTURES.values():
        raise ConfigRefusedError(f"{place('model_type')}: model_type = {kind!r}: not covered; covered are {covered}")


def _check_numbers(place: Place, values: Mapping[str, Any]) -> None:
    """Sizes that transformers takes as they come, and then fails on or makes a model of that fills any memory."""
    vocab_size, layers, width = (values.get(key) for key in ("vocab_size", "num_hidden_layers", "initializer_range"))
    if not isinstance(vocab_size, int) or vocab_size < MIN_VOCAB_SIZE:
        raise InputError(
            f"{place('vocab_size')}: vocab_size must be at least {MIN_VOCAB_SIZE}: all bytes and special tokens"
        )
    for key in _SIZES:
        value = values.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{place(key)}: {key} is {value!r}; a positive whole number is needed")
    if layers is not None and layers > _MAX_LAYERS:
        raise InputError(f"{place('num_hidden_layers')}: num_hidden_layers is {layers:,}; at most {_MAX_LAYERS:,}")
    if not isinstance(width, int | float) or not 0 <= width < float("inf"):
        raise InputError(f"{place('initializer_range')}: initializer_range is {width!r}; a number from 0 on is needed")


def _require_memory(place: Place, facts: ModelFacts) -> None:
    needed, there = 4 * facts.num_parameters + RUNTIME_BYTES, memory_of_machine()
    if needed > there:
        raise InfeasibleError(
            f"{place('')}: {facts.num_parameters:,} random weights take {needed / 1e9:.2f} GB to make, and this "
            f"machine has {there / 1e9:.2f} GB; make the model smaller"
        )


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn what safetensors and tokenizers say of a full disk, in classes of their own, into the system's error."""
    try:
        yield
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _last_line(error: Exception) -> str:
    """What a nested complaint is about; the lines before it say where in transformers it came up."""
    return ([type(error).__name__, *str(error).strip().splitlines()])[-1].strip()


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
