"""Measures what a running command uses, where the kernel has no limit for it, and ends the command that uses too much.

A watcher sees only every so often, so a limit may be passed by what a command can write in between. What it cannot
see at all, such as files that were deleted and are still open, shows as less free disk or memory; for those it stops
the command while the machine still has some left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from metainfer.sandbox.records import Limits

_POLL_S = 0.2
_LARGEST_RESERVE = 512 << 20
_BLOCK = 512
_CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "file", "shmem"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_cache",
        "total_shmem",
    ),
)


class Watch:
    """Watches the process tree below `pid` and the folders that it may write, and calls `end` past a limit."""

    def __init__(self, pid: int, limits: Limits, folders: Sequence[Path], end: Callable[[], None]) -> None:
        self._pid = pid
        self._limits = limits
        self._folders = folders
        self._end = end
        self._memory_reserve = reserve(available_memory())
        self._disk_reserve = reserve(self._free_disk())
        self._memory_bytes = limits.memory_bytes or available_memory() - self._memory_reserve
        self._over = threading.Event()
        self.exceeded = ""
        """The limit that the command passed, in words; empty as long as it has passed none."""
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. The folders are measured once more, for what was written since the last look."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        self.exceeded = self.exceeded or self._folder_excess()

    def _watch(self) -> None:
        pause_s = _POLL_S
        while not self._over.wait(pause_s):
            began = time.monotonic()
            self.exceeded = self._memory_excess() or self._folder_excess() or self._machine_excess()
            if self.exceeded:
                self._end()
                return
            pause_s = max(_POLL_S, 4 * (time.monotonic() - began))  # a large folder must not cost a whole core

    def _memory_excess(self) -> str:
        used = sum(map(_own_memory, process_tree(self._pid)))
        return f"it used more than {_size(self._memory_bytes)} of memory" if used > self._memory_bytes else ""

    def _folder_excess(self) -> str:
        size, files = 0, 0
        for folder in self._folders:
            try:
                for entry_bytes in entry_sizes(folder):
                    size, files = size + entry_bytes, files + 1
                    if size > self._limits.job_bytes:
                        return f"it wrote more than {_size(self._limits.job_bytes)} into its folders"
                    if files > self._limits.job_files:
                        return f"it made more than {self._limits.job_files} files in its folders"
            except OSError as error:
                return f"it made a folder that cannot be measured ({error.strerror})"
        return ""

    def _machine_excess(self) -> str:
        if available_memory() < self._memory_reserve:
            return f"the machine had less than {_size(self._memory_reserve)} of memory left while it ran"
        if self._free_disk() < self._disk_reserve:
            return f"the disk had less than {_size(self._disk_reserve)} left while it ran"
        return ""

    def _free_disk(self) -> int:
        return shutil.disk_usage(self._folders[0]).free


def reserve(available: int) -> int:
    """What is kept back for the rest of the machine. A part of what there is, so that a full machine still works."""
    return min(_LARGEST_RESERVE, available // 8)


def available_memory() -> int:
    """Bytes that can still be had without pushing anything out, by the machine and by the container around us."""
    available: int = psutil.virtual_memory().available
    return min([available, *_container_memory()])


def process_tree(pid: int) -> Iterator[int]:
    """`pid` and its descendants. Inside a sandbox none can leave: the first process there adopts all orphans."""
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        yield process
        with contextlib.suppress(OSError, psutil.Error):
            waiting += _children(process)


def entry_sizes(folder: Path) -> Iterator[int]:
    """Bytes on disk of everything below `folder`, in no order. What vanishes meanwhile is passed over.

    OSError for a folder that cannot be listed: one with a path too long, or closed to us.
    """
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    lists = [tasks / task / "children" for task in os.listdir(tasks)]
    if lists and not lists[0].exists():  # a kernel without that file: look through all processes instead
        return [child.pid for child in psutil.Process(pid).children()]
    return [int(child) for path in lists for child in path.read_text(encoding="ascii").split()]


def _own_memory(pid: int) -> int:
    """Bytes that only the end of the process gives back: not its files, which the kernel may drop."""
    kilobytes = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                kilobytes += int(line.split()[1])
    return kilobytes << 10


def _container_memory() -> Iterator[int]:
    """What is left of a container's limit, counting its cached files as free."""
    for limit_file, usage_file, cached, shared in _CONTAINERS:
        with contextlib.suppress(OSError, ValueError):
            limit = int(Path(limit_file).read_text(encoding="ascii"))  # "max" is no number: no limit
            used = int(Path(usage_file).read_text(encoding="ascii"))
            lines = Path(limit_file).with_name("memory.stat").read_text(encoding="ascii").splitlines()
            stat = dict(line.split() for line in lines)
            yield limit - used + int(stat.get(cached, 0)) - int(stat.get(shared, 0))


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
