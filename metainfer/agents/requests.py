"""The file in which questions go from a job that runs generated code to one that holds the model's key.

JSON lines: first which run they are of and how many there are, then one question each. Who reads it believes nothing in
it but what `metainfer.agents.admission` lets pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metainfer.agents.budget import Purpose
from metainfer.agents.correspondence import RunId
from metainfer.agents.messages import ChatRequest
from metainfer.errors import InputError, RefusedError
from metainfer.files import read_regular, write_atomic

MAX_REQUESTS = 2000
MAX_LINE_BYTES = 1 << 20
MAX_FILE_BYTES = 64 << 20


class RequestsError(RefusedError):
    """A file of requests is not what may be sent. Nothing was."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_Record = TypeVar("_Record", bound=_Model)


class Header(_Model):
    """The first line."""

    format: Literal["metainfer/requests/v1"] = "metainfer/requests/v1"
    run: RunId
    count: int = Field(ge=1, le=MAX_REQUESTS)


class PendingRequest(_Model):
    """One question, for whom it is, and its digest."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    purpose: Purpose
    request: ChatRequest

    @classmethod
    def of(cls, request: ChatRequest, purpose: Purpose) -> PendingRequest:
        return cls(digest=request.digest, purpose=purpose, request=request)


def write_requests(file: Path, run: RunId, pending: Sequence[PendingRequest]) -> None:
    """Write them, whole or not at all. InputError for more, or longer ones, than anybody would read."""
    lines = [one.model_dump_json().encode() for one in pending]
    if len(lines) > MAX_REQUESTS or any(len(line) > MAX_LINE_BYTES for line in lines):
        raise InputError(
            f"{len(lines)} questions, or one of more than {MAX_LINE_BYTES:,} bytes: more than a round takes"
        )
    if sum(map(len, lines)) > MAX_FILE_BYTES - MAX_LINE_BYTES:
        raise InputError(f"{sum(map(len, lines)):,} bytes of questions: more than a round takes")
    header = Header(run=run, count=len(lines)).model_dump_json().encode()
    write_atomic(file, b"".join(line + b"\n" for line in (header, *lines)))


def read_requests(file: Path, run: RunId) -> list[PendingRequest]:
    """The questions of a file that another job left, each once and with its own digest.

    Raises RequestsError for what is no such file, is of another run, or is larger than any that is written here.
    """
    if file.is_symlink():
        raise RequestsError(f"{file}: is a symbolic link")
    try:
        data = read_regular(file, MAX_FILE_BYTES)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    *lines, rest = data.split(b"\n")
    if rest or not lines or len(lines) > MAX_REQUESTS + 1:
        raise RequestsError(f"{file}: not 2 to {MAX_REQUESTS + 1} whole lines")
    header = _parsed(Header, lines[0], file, 1)
    if header.run != run:
        raise RequestsError(f"{file}:1: of another run; it was made with another spec, budget or version than this one")
    if header.count != len(lines) - 1:
        raise RequestsError(f"{file}:1: speaks of {header.count} questions, and has {len(lines) - 1}")
    found: dict[str, PendingRequest] = {}
    for number, line in enumerate(lines[1:], start=2):
        pending = _parsed(PendingRequest, line, file, number)
        if pending.digest in found:
            raise RequestsError(f"{file}:{number}: the same question again")
        if _digest(pending.request) != pending.digest:
            raise RequestsError(f"{file}:{number}: its digest is not that of its question")
        found[pending.digest] = pending
    return list(found.values())


def _parsed(model: type[_Record], line: bytes, file: Path, number: int) -> _Record:
    """A line as a record. RequestsError names fields, never what is in them."""
    if len(line) > MAX_LINE_BYTES:
        raise RequestsError(f"{file}:{number}: more than {MAX_LINE_BYTES:,} bytes")
    try:
        return model.model_validate_json(line, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ascii(".".join(map(str, problem["loc"])))[1:-1][:120]
        raise RequestsError(f"{file}:{number}: {where}: {ascii(problem['msg'])[1:-1][:200]}") from None
    except RecursionError:
        raise RequestsError(f"{file}:{number}: nested too deep") from None


def _digest(request: ChatRequest) -> str:
    """Empty for a question that has none: half a character in a text, or lists without end."""
    try:
        return request.digest
    except (ValueError, RecursionError):
        return ""
