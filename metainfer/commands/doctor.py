"""What a machine needs, one line each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

from metainfer.commands.context import cache_root
from metainfer.errors import MetainferError

_DISK_BYTES = 5_000_000_000


def examine() -> Iterator[tuple[str, str]]:
    """(what, what is wrong with it and how to mend it, or nothing) for everything that engines and gates need."""
    yield "Linux on x86-64 with AVX2 and FMA", _complaint(_machine)
    yield "git", "" if shutil.which("git") else "not found; install it"
    yield "C++ compiler", "" if shutil.which("g++") else "g++ not found; install it (apt install g++)"
    yield "sandbox", _sandbox()
    yield "disk for models", _disk()


def _machine() -> None:
    from metainfer.spec.load import refuse_machine

    refuse_machine()


def _sandbox() -> str:
    from metainfer.sandbox.sandbox import Sandbox

    return Sandbox().problem()


def _disk() -> str:
    root = cache_root()
    place = next(folder for folder in (root, *root.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    return (
        ""
        if free >= _DISK_BYTES
        else f"{free / 1e9:.1f} GB free at {place}; the demo model needs 5 GB while it converts"
    )


def _complaint(check: Callable[[], None]) -> str:
    try:
        check()
    except MetainferError as error:
        return str(error)
    return ""
