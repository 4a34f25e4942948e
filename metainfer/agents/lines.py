"""Files of JSON lines that only grow: a line is there whole or not at all, whatever happens to the process."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def append_line(file: Path, line: bytes) -> None:
    """Add one line, on disk when this returns. OSError, and no part of the line, if it does not fit there."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        before = os.fstat(handle).st_size
        if os.write(handle, line + b"\n") <= len(line):
            os.ftruncate(handle, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
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
