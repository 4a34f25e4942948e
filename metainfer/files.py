"""Bytes on disk: canonical JSON, digests, and writes that are whole or absent."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from metainfer.errors import InputError

MAX_TEXT_BYTES = 1 << 20
"""No spec, contract, config or manifest that a person wrote or reads is larger."""
_READ_BYTES = 1 << 20
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path, name: str | None = None) -> BinaryIO:
    """Open a file that somebody named, for reading. `name` is what errors call it (default: the path).

    Never waits. Raises InputError for what has no end, such as a device or FIFO, and OSError as `open` does.
    """
    # Opening a FIFO would wait for a writer without O_NONBLOCK; for regular files the flag means nothing.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "no file")
        raise InputError(f"{name or path}: is {kind}; name a regular file")
    return os.fdopen(handle, "rb")


def read_regular(path: Path, limit: int = MAX_TEXT_BYTES, name: str | None = None) -> bytes:
    """The content of a file that somebody named. Raises InputError if it is larger than `limit`, or as above."""
    with open_regular(path, name) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"{name or path}: more than {limit:,} bytes; no file of this kind needs more")
    return data


def canonical_json(value: Any) -> bytes:
    """Encode `value` so that equal values give equal bytes: sorted keys, no spaces, UTF-8, no NaN."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def pretty_json(value: Any) -> bytes:
    """Encode `value` for people and diffs: sorted keys, two-space indent, final newline."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sha256_bytes(data: bytes) -> str:
    """Hex SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of the file's content, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def folder_digest(folder: Path) -> str:
    """Digest a flat folder: `sha256:` + hex over its sorted `name NUL sha256 LF` lines, dot files left out.

    Generated engines compute the same value before they load a model (`weights.py` there).
    """
    total = hashlib.sha256()
    for path in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if path.is_file() and not path.name.startswith("."):
            total.update(f"{path.name}\0{sha256_file(path)}\n".encode())
    return f"sha256:{total.hexdigest()}"


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes the file private; give it the mode any new file would have here.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def replace_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make `files` (relative path → content) the whole of `folder`: what was there stays until all is written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        new, old = Path(scratch, "new"), Path(scratch, "old")
        for name, data in files.items():
            target = new / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except BaseException:
            if old.exists():
                old.rename(folder)
            raise
