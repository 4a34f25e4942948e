"""Reading a folder that another job left: bounded, without following anything, and only what is expected there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from metainfer.errors import RefusedError
from metainfer.forge.paths import MAX_FILE_BYTES, MAX_FILES, MAX_PATH_CHARACTERS, MAX_TOTAL_BYTES

_MAX_ENTRIES = 4 * MAX_FILES
_MAX_SHOWN = 20
Record = TypeVar("Record", bound=BaseModel)


class HostileError(RefusedError):
    """What another job left is not what may be left there. Nothing was written."""

    def __init__(self, where: str, complaints: list[str]) -> None:
        shown = complaints[:_MAX_SHOWN]
        more = [f"  - … and {len(complaints) - _MAX_SHOWN} more"] if len(complaints) > _MAX_SHOWN else []
        super().__init__("\n".join([f"refused {where}; nothing was written:", *(f"  - {c}" for c in shown), *more]))
        self.complaints = tuple(complaints)


def read_folder(folder: Path, where: str, allowed: tuple[str, ...]) -> dict[str, bytes]:
    """Every file below `folder` by its relative path. `allowed`: files, and folders (with a slash), that may be there.

    Raises HostileError for links, special and executable files, files with other names elsewhere, names that are not
    UTF-8, and whatever is too large or too many. `where` is what errors call the folder.
    """
    complaints: list[str] = []
    files: dict[str, bytes] = {}
    total = 0
    for name, status in _entries(folder, where):
        shown = ascii(name)[1:-1][:MAX_PATH_CHARACTERS]
        if complaint := _complaint(name, status, allowed):
            complaints.append(f"{shown}: {complaint}")
            continue
        if stat.S_ISDIR(status.st_mode):
            continue
        total += status.st_size
        if status.st_size > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES or len(files) >= MAX_FILES:
            raise HostileError(where, [*complaints, f"{shown}: beyond {MAX_FILE_BYTES} bytes a file, {MAX_TOTAL_BYTES} "
                                                    f"in all or {MAX_FILES} files"])  # fmt: skip
        files[name] = _read(folder / name, where, shown)
    if complaints:
        raise HostileError(where, complaints)
    return files


def parse(model: type[Record], files: dict[str, bytes], name: str, where: str, limit: int = MAX_FILE_BYTES) -> Record:
    """A file's JSON as a record, each field held against its type. HostileError names fields, never their values."""
    data = files.get(name)
    if data is None:
        raise HostileError(where, [f"{name}: is missing"])
    if len(data) > limit:
        raise HostileError(where, [f"{name}: {len(data)} bytes, above the {limit} allowed"])
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        raise HostileError(where, [f"{name}: {_place(p['loc'])}: {_plain(p['msg'])}" for p in problems]) from None
    except RecursionError:
        raise HostileError(where, [f"{name}: nested too deep"]) from None


def _entries(folder: Path, where: str) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a folder, links not followed; bounded, since a name costs nothing."""
    if folder.is_symlink() or not folder.is_dir():
        raise HostileError(where, [f"{folder.name}: no folder"])
    found = 0
    pending = [""]
    while pending:
        prefix = pending.pop()
        with os.scandir(folder / prefix) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                found += 1
                if found > _MAX_ENTRIES:
                    raise HostileError(where, [f"more than {_MAX_ENTRIES} entries"])
                name = f"{prefix}{entry.name}"
                status = entry.stat(follow_symlinks=False)
                yield name, status
                if stat.S_ISDIR(status.st_mode) and len(name) <= MAX_PATH_CHARACTERS:
                    pending.append(f"{name}/")


def _complaint(name: str, status: os.stat_result, allowed: tuple[str, ...]) -> str:
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    kind = stat.S_IFMT(status.st_mode)
    if len(name) > MAX_PATH_CHARACTERS:
        return f"longer than {MAX_PATH_CHARACTERS} characters"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if kind == stat.S_IFDIR:
        inside = any(f"{name}/".startswith(place) for place in allowed if place.endswith("/"))
        return "" if inside else "no such folder belongs here"
    if kind != stat.S_IFREG:
        return f"{kinds.get(kind, 'a device')}; only plain files are allowed"
    if status.st_nlink > 1:
        return "has another name elsewhere; only plain files are allowed"
    if status.st_mode & 0o111:
        return "executable; only plain files are allowed"
    inside = any(name.startswith(place) if place.endswith("/") else name == place for place in allowed)
    return "" if inside else "no such file belongs here"


def _read(path: Path, where: str, shown: str) -> bytes:
    """A regular file's bytes; it must still be one when it is opened."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise HostileError(where, [f"{shown}: {error.strerror}"]) from None
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise HostileError(where, [f"{shown}: not a regular file"])
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise HostileError(where, [f"{shown}: above {MAX_FILE_BYTES} bytes"])
    return data


def _place(loc: tuple[int | str, ...]) -> str:
    return _plain(".".join(map(str, loc)) or "the file")


def _plain(text: str) -> str:
    shown = ascii(text)[1:-1]
    return shown if len(shown) <= 200 else f"{shown[:199]}..."
