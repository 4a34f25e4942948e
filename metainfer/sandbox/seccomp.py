"""The filter on system calls: nothing inside makes a user namespace, in which it could mount what no limit counts.

The same filter holds for root and for everybody else. bwrap's own --disable-userns only works together with
--unshare-user, which root does without, and needs a writable /proc/sys, which a container seldom has.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from dataclasses import dataclass

from metainfer.errors import MachineError

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ARCHITECTURE_AT, _NUMBER_AT, _FIRST_ARGUMENT_AT = 4, 0, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_CLONE_NEWUSER = 0x10000000
_X32_BIT = 0x40000000
"""The second table of calls on x86-64 starts here; nothing of today uses it."""


@dataclass(frozen=True, slots=True)
class _Calls:
    """Numbers of the calls that can make a namespace, on one architecture."""

    architecture: int
    clone: int
    unshare: int
    clone3: int


_CALLS = {
    "x86_64": _Calls(0xC000003E, clone=56, unshare=272, clone3=435),
    "aarch64": _Calls(0xC00000B7, clone=220, unshare=97, clone3=435),
}


def filter_program(machine: str) -> bytes:
    """The filter as the kernel takes it. Jumps are counted from the next line: (if true, if false)."""
    calls = _CALLS.get(machine)
    if calls is None:
        raise MachineError(
            f"no sandbox: its filter of system calls knows {' and '.join(_CALLS)}, and this is {machine}"
        )
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 0, 8, calls.architecture),  # else: refused, as numbers mean something different there
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 6, 0, _X32_BIT),
        (_EQUAL, 6, 0, calls.clone3),  # its flags lie in memory, out of a filter's sight; libc falls back on clone
        (_EQUAL, 1, 0, calls.clone),
        (_EQUAL, 0, 2, calls.unshare),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_BIT, 1, 0, _CLONE_NEWUSER),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def open_filter() -> int:
    """A file descriptor that holds the filter of this machine, for `bwrap --seccomp`; the caller closes it."""
    return memory_file("seccomp", filter_program(platform.machine()))


def memory_file(name: str, content: bytes) -> int:
    """A file descriptor at the start of `content`, which no path names."""
    handle = os.memfd_create(name)
    os.write(handle, content)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle
