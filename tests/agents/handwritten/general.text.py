"""Text in, text out."""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_UNDECIDED = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 8
"""Tokens kept before the new ones. A character has four bytes, and a token that is kept has one at least."""
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class TextCodec:
    """Tokenizer and chat template of a model folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self._silent = {token_id for token_id, token in added.items() if token.special}
        described = folder / "tokenizer_config.json"
        config = json.loads(described.read_text(encoding="utf-8")) if described.is_file() else {}
        self._named = {name: _content(config[name]) for name in _NAMED_TOKENS if config.get(name) is not None}
        self._template = _compiled(_template_text(folder, config))

    def encode(self, text: str) -> list[int]:
        """Token ids of a bare prompt, with the special tokens that belong around it."""
        ids: list[int] = self._tokenizer.encode(_whole(text, "prompt")).ids
        return ids

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, up to where the answer begins."""
        try:
            text = self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._named
            )
        except Exception as error:
            raise ValueError(f"messages: the chat template refuses them: {error}") from error
        ids: list[int] = self._tokenizer.encode(_whole(text, "messages"), add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: list[int]) -> str:
        """Text without special tokens."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def token_text(self, token_id: int) -> str:
        """A single token, special or not."""
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text

    def detokenizer(self, stop: tuple[str, ...] = ()) -> "Detokenizer":
        """For one answer."""
        return Detokenizer(self.decode, self._is_silent, stop)

    def _is_silent(self, token_id: int) -> bool:
        return token_id in self._silent or self._tokenizer.id_to_token(token_id) is None


class Detokenizer:
    """Tokens of one answer to pieces of text, up to a stop string."""

    stopped: bool

    def __init__(
        self, decode: Callable[[list[int]], str], is_silent: Callable[[int], bool], stop: tuple[str, ...]
    ) -> None:
        self.stopped = False
        self._decode = decode
        self._is_silent = is_silent
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._window: list[int] = []
        self._passed = 0  # characters of the window's text that went on to the search for stop strings
        self._held = ""

    def push(self, token_id: int) -> str:
        """The text that is decided with this token."""
        if self.stopped or self._is_silent(token_id):
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        decided = len(text) - text.endswith(_UNDECIDED)
        piece = text[self._passed : decided]
        self._passed = max(self._passed, decided)
        if len(self._window) > 2 * _CONTEXT:
            del self._window[:-_CONTEXT]
            self._passed = len(self._decode(self._window)) - text.endswith(_UNDECIDED)
        return self._search(piece)

    def flush(self) -> str:
        """What was held, for no token follows."""
        if self.stopped:
            return ""
        rest = self._search(self._decode(self._window)[self._passed :])
        rest, self._held = rest + self._held, ""
        self._window, self._passed = [], 0
        return rest

    def _search(self, piece: str) -> str:
        """Of what was held and what came, all that can be no part of a stop string any more."""
        text = self._held + piece
        for end in range(len(self._held) + 1, len(text) + 1):
            complete = [len(stop) for stop in self._stop if text.endswith(stop, 0, end)]
            if complete:
                self.stopped, self._held = True, ""
                return text[: end - max(complete)]
        keep = next(
            (at for at in range(max(0, len(text) - self._longest + 1), len(text)) if self._may_begin(text[at:])),
            len(text),
        )
        self._held = text[keep:]
        return text[:keep]

    def _may_begin(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self._stop)


def _whole(text: str, field: str) -> str:
    """The text, if UTF-8 can spell it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field}: holds half of a surrogate pair, which is no character") from None
    return text


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _template_text(folder: Path, config: dict[str, Any]) -> str:
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    given = config.get("chat_template")
    if isinstance(given, list):
        given = next((one["template"] for one in given if one.get("name") == "default"), None)
    if not isinstance(given, str):
        raise ValueError(f"{folder}: has no chat template, neither {own.name} nor in tokenizer_config.json")
    return given


def _compiled(text: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(text)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise ValueError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
