"""Files of JSON lines that only grow: a line is there whole or not at all, whatever happens to the process."""

from __future__ import annotations

import os
from pathlib import Path


def append_line(file: Path, line: bytes) -> None:
    """Add one line, on disk when this returns."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(handle, line + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)


def drop_torn_line(file: Path) -> None:
    """Cut off a last line without its end, which a process that died left behind."""
    if not file.exists():
        return
    with file.open("r+b") as stream:
        whole = stream.read().rfind(b"\n") + 1
        stream.truncate(whole)
