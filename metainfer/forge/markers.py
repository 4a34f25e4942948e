"""The bot's handwriting: how its pull requests and commits are told from a person's, and what inputs made them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from metainfer.errors import InputError

INPUT_HASH = "Metainfer-Input-Hash"
ENGINE = "Metainfer-Engine"
BRANCH_PREFIX = "metainfer/"
_OPEN = "<!-- metainfer:"
_MARKER = re.compile(r"<!-- metainfer:(\{[^\n]*\}) -->\s*\Z")
_TRAILER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,60}")
_INPUT_HASH = re.compile(r"[A-Za-z0-9:._-]{1,128}")


def branch_of(engine: str) -> str:
    """The one branch of an engine's pull requests."""
    return BRANCH_PREFIX + engine


def check_input_hash(value: str) -> str:
    """Return `value` if it can stand in a trailer and a marker as it is. Raises InputError."""
    if not _INPUT_HASH.fullmatch(value):
        raise InputError(f"{value!r} is not an input hash")
    return value


def with_marker(body: str, engine: str, input_hash: str, **more: str) -> str:
    """Append the hidden marker. Whatever looks like one in `body` is made visible: only the last line counts.

    A body that has a marker of ours keeps its words and gets the new one.
    """
    body = _MARKER.sub("", body)
    marker = json.dumps({"engine": engine, "input_hash": input_hash, **more}, sort_keys=True)
    return f"{body.replace(_OPEN, '&lt;!-- metainfer:').rstrip()}\n\n{_OPEN}{marker} -->\n"


def read_marker(body: str) -> dict[str, str]:
    """The marker at the end of a body; empty when a person wrote it."""
    found = _MARKER.search(body)
    try:
        fields = json.loads(found.group(1)) if found else {}
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in fields.items()}


def with_trailers(subject: str, text: str, trailers: Mapping[str, str]) -> str:
    """A commit message: one line, a paragraph, and trailers, none of which can smuggle in another."""
    for name in trailers:
        if not _TRAILER_NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot name a commit trailer")
    lines = [f"{name}: {one_line(value)}" for name, value in trailers.items()]
    parts = [one_line(subject), text.strip(), "\n".join(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def read_trailers(message: str) -> dict[str, str]:
    """The trailers in the last paragraph of a commit message."""
    last = message.rstrip().rsplit("\n\n", 1)[-1]
    found = {}
    for line in last.splitlines():
        name, colon, value = line.partition(": ")
        if colon and _TRAILER_NAME.fullmatch(name):
            found[name] = value.strip()
    return found


def one_line(text: str, limit: int = 200) -> str:
    """`text` on one line, without control characters, at most `limit` characters long."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
