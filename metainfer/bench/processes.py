"""A subject's processes seen from outside: memory and CPU time of the whole tree, read from /proc."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)
_STOP_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class TreeMemory:
    """Bytes over all processes of a tree."""

    peak_rss_bytes: int
    """Sum of each process's own highest resident size, as the kernel kept it: exact for one process, else an upper
    bound. Pages of mapped model files count."""
    rss_bytes: int
    private_bytes: int
    """Resident memory that no file backs: what the process needs beside the mapped weights."""


def process_tree(pid: int) -> list[psutil.Process]:
    """The process and its descendants that are alive."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except _GONE:
        return []


def tree_memory(pid: int) -> TreeMemory | None:
    """Memory of the tree, or None if none of its processes can be read."""
    readings = [reading for process in process_tree(pid) if (reading := _status_bytes(process.pid))]
    if not readings:
        return None
    return TreeMemory(
        peak_rss_bytes=sum(reading.get("VmHWM", 0) for reading in readings),
        rss_bytes=sum(reading.get("VmRSS", 0) for reading in readings),
        private_bytes=sum(reading.get("RssAnon", 0) for reading in readings),
    )


def tree_cpu_s(pid: int) -> float:
    """CPU seconds that the tree has used, with those of its ended children; 0 for a tree that is gone."""
    total = 0.0
    for process in process_tree(pid):
        with contextlib.suppress(*_GONE):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def own_cpu_s() -> float:
    """CPU seconds of this process, all its threads, without its children."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


def stop_process(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a process that this run started: ask, wait, then insist; its children with it."""
    children = process_tree(process.pid)[1:]
    process.terminate()
    try:
        process.wait(_STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # psutil compares start times, so a number that another process has taken over is never signalled.
    for child in children:
        with contextlib.suppress(*_GONE):
            child.kill()


def _status_bytes(pid: int) -> dict[str, int]:
    """The sizes in /proc/PID/status, in bytes; empty if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    fields = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in fields if len(words) == 3 and words[2] == "kB"}
