"""What was said in a run, line by line: enough to rebuild the engine without a model, and nothing secret."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from metainfer.agents.budget import Purpose
from metainfer.agents.lines import append_line, drop_torn_line
from metainfer.agents.messages import ChatRequest, Reply
from metainfer.errors import InputError

MAX_LINE_BYTES = 1 << 20
MAX_FILE_BYTES = 256 << 20
_SECRETS = re.compile(
    r"""
    (?:\b | (?<=\\[bfnrt]))  # a line break in text that is JSON is a letter
    (?: sk-[A-Za-z0-9_-]{16,} | gh[pousr]_[A-Za-z0-9]{30,} | github_pat_\w{30,} | hf_[A-Za-z0-9]{30,}
        | glpat-[\w-]{20,} | npm_[A-Za-z0-9]{36} | [sr]k_live_[A-Za-z0-9]{16,} | AIza[\w-]{35} | xapp-[\w-]{20,}
        | AKIA[A-Z0-9]{16} | xox[abpr]-[A-Za-z0-9-]{10,} | eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,} )
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*?-----END[ ][A-Z ]*PRIVATE[ ]KEY-----
    """,
    re.VERBOSE | re.DOTALL,
)
_REDACTED = "[redacted]"
_SHORTEST_SECRET = 8
"""What is shorter is a stand-in for a local endpoint, such as `none`, and a word of many texts."""


class Turn(BaseModel):
    """One call: the question, and the answer or what went wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    purpose: Purpose
    request: ChatRequest
    reply: Reply | None = None
    error: str = ""
    from_store: bool = False
    """The reply was paid for earlier."""
    seconds: float = 0.0
    ended: float | None = None
    """Seconds since the epoch, noted when it is written down."""


class Transcript:
    """The turns of one run, appended to a file of JSON lines."""

    def __init__(self, file: Path, secrets: Sequence[str] = ()) -> None:
        """`secrets`: values that must never be written, beside whatever looks like a key."""
        self.file = file
        self._secrets = spellings(secrets)
        self._lock = Lock()
        file.parent.mkdir(parents=True, exist_ok=True)
        drop_torn_line(file)

    def add(self, turn: Turn) -> None:
        """Write a turn. InputError if it, or the whole file, is larger than any honest conversation."""
        stamped = turn.model_copy(update={"ended": round(time.time(), 3)})
        # Value by value: what begins in one and ends in another is no key, and JSON without its middle is none.
        line = json.dumps(_redacted(stamped.model_dump(mode="json"), self._secrets), ensure_ascii=False).encode()
        with self._lock:
            size = self.file.stat().st_size if self.file.exists() else 0
            if len(line) > MAX_LINE_BYTES or size + len(line) > MAX_FILE_BYTES:
                raise InputError(f"{self.file}: a turn of {len(line):,} bytes after {size:,} is more than is kept")
            append_line(self.file, line)


def read_transcript(file: Path) -> Iterator[Turn]:
    """Every turn. InputError names a line that is none."""
    if not file.exists():
        raise InputError(f"{file}: there is no transcript")
    try:
        *lines, _torn = file.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield Turn.model_validate_json(line)
        except ValidationError as error:
            raise InputError(f"{file}:{number}: not a turn of a conversation ({error})") from error


def spellings(secrets: Sequence[str]) -> list[str]:
    """The secrets, and as they stand in text that is JSON."""
    given = [secret for secret in secrets if secret]
    return list(dict.fromkeys([*given, *(json.dumps(one, ensure_ascii=False)[1:-1] for one in given)]))


def _redacted(value: Any, secrets: Sequence[str]) -> Any:
    """Plain data with every text in it redacted."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, list):
        return [_redacted(one, secrets) for one in value]
    return {name: _redacted(one, secrets) for name, one in value.items()} if isinstance(value, dict) else value


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """`text` without the given secrets and without what has the shape of a key."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _REDACTED)
    return _SECRETS.sub(_REDACTED, text)
