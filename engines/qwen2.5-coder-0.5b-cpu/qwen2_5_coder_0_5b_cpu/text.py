"""Text in and out: chat template, tokenizer, incremental detokenisation."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"  # what half a character decodes to
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class TextCodec:
    """The tokenizer and the chat template of a model folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._template, self._template_values = _load_chat_template(folder)

    def encode(self, text: str) -> list[int]:
        """Token ids of a bare prompt, with the special tokens that belong around one."""
        _refuse_half_characters("prompt", text)
        return list(self._tokenizer.encode(text).ids)

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, open for the assistant's answer; ValueError if refused."""
        try:
            text = self._template.render(messages=messages, **self._template_values)
        except (TemplateError, TypeError, ValueError) as error:
            raise ValueError(f"messages: the chat template refuses them: {error}") from error
        _refuse_half_characters("messages", text)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: list[int]) -> str:
        """Text of `token_ids`, special tokens left out."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        """One token as text, special or not."""
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def detokenizer(self, stop: tuple[str, ...] = ()) -> Detokenizer:
        return Detokenizer(self, stop)


class Detokenizer:
    """Turns tokens into text as they come; what it gives out is never taken back.

    All pieces together are the decoding of all tokens, up to the stop string if there is one.
    """

    def __init__(self, codec: TextCodec, stop: tuple[str, ...]) -> None:
        self._decode = codec.decode
        self._before: list[int] = []  # tokens given out in full: context for those that follow
        self._pending: list[int] = []  # tokens whose last character may be incomplete
        self._given = 0  # characters of before + pending that are decided
        self._stop = stop
        self._held = ""  # decided text that may yet become a stop string
        self.stopped = False

    def push(self, token_id: int) -> str:
        """The text that is decided now: whole characters, none of which may belong to a stop."""
        self._pending.append(token_id)
        text = self._decode(self._before + self._pending)
        decided = text.rstrip(_REPLACEMENT)
        new = decided[self._given :]
        if decided == text and new:
            self._before, self._pending = self._pending, []
            self._given = len(self._decode(self._before))
        else:
            self._given = max(self._given, len(decided))
        return self._until_stop(new)

    def flush(self) -> str:
        """The rest, when no token will follow."""
        new = self._decode(self._before + self._pending)[self._given :]
        self._before, self._pending, self._given = [], [], 0
        new = self._until_stop(new) + self._held
        self._held = ""
        return new

    def _until_stop(self, new: str) -> str:
        """Pass on what comes before a stop string; hold back what may be the start of one."""
        if self.stopped:
            return ""
        text = self._held + new
        found = [(text.find(stop) + len(stop), -len(stop)) for stop in self._stop if stop in text]
        if found:  # the first to be complete, and of those that end together the longest
            end, minus_length = min(found)
            self.stopped = True
            self._held = ""
            return text[: end + minus_length]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with, short of the whole of `stop`."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)


def _refuse_half_characters(field: str, text: str) -> None:
    """JSON can spell half a surrogate pair, which is no character; the tokenizer would panic."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{field}: has half a surrogate pair, which is no character")


def _load_chat_template(folder: Path) -> tuple[Template, dict[str, Any]]:
    """The compiled chat template, and what it sees beside the messages."""
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    file = folder / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.exists() else config.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if not source:
        raise ValueError(f"{folder}: the tokenizer has no chat template, which chat needs")
    values: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True}
    for name in _NAMED_TOKENS:
        if token := config.get(name):
            values[name] = token["content"] if isinstance(token, dict) else token
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source), values


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # Jinja's escapes HTML


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
