"""Folders of this machine that belong to one command and must not outlive it, however it ends.

Each is locked as long as its owner lives. The kernel drops the lock with the process, so the next command to start
knows which folders a killed one left behind, whatever their numbers of processes mean in its container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

_NAME = re.compile(r"metainfer-(?:job|net)-[a-z0-9_]{8}")
_UNLOCKED_S = 60.0
"""A folder younger than this may be about to be locked."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def own_folder(kind: str) -> Iterator[Path]:
    """A new folder, gone with the context or, if this process is killed in it, with the next start of another.

    `kind`: job or net.
    """
    sweep()
    with (
        unwinding_on_signals(),
        tempfile.TemporaryDirectory(prefix=f"metainfer-{kind}-", ignore_cleanup_errors=True) as name,
    ):
        lock = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


@cache
def sweep() -> None:
    """Remove what killed commands left behind. Once for each process: later leftovers are the next one's."""
    for folder in Path(tempfile.gettempdir()).iterdir():
        if _NAME.fullmatch(folder.name):
            with contextlib.suppress(OSError):
                _remove_if_left(folder)


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as an exception does, so that what is open gets cleaned up.

    Handlers of others are kept, and so is being ignored (nohup). Only the main thread can ask for this; elsewhere, and
    within another such context, it changes nothing.
    """
    taken = []
    if threading.current_thread() is threading.main_thread():
        taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _unwind)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _unwind(number: int, frame: FrameType | None) -> None:
    for other in _SIGNALS:  # a second one would break off the cleaning up
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _remove_if_left(folder: Path) -> None:
    """Remove a folder that nobody holds; OSError if somebody does, or if it is not ours to remove."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if time.time() - os.fstat(lock).st_ctime > _UNLOCKED_S:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
