"""The machine and the subjects' processes, read from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from metainfer.bench import environment
from metainfer.bench.environment import NoiseMeter, capture_environment
from metainfer.bench.processes import process_tree, stop_process, tree_cpu_s, tree_memory

MIB = 1 << 20
HOLDS_AND_FREES = "block = bytearray(b'x') * (96 << 20); del block; print(flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS_AND_FREES!r}], input=None)"
BURNS = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"


@contextmanager
def python(script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that has printed a line and waits for one."""
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        stop_process(process)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def test_the_peak_stays_after_memory_is_freed() -> None:
    with python(HOLDS_AND_FREES) as process:
        memory = tree_memory(process.pid)
    assert memory is not None
    assert memory.peak_rss_bytes > 96 * MIB
    assert memory.private_bytes <= memory.rss_bytes < 96 * MIB


def test_memory_of_a_child_counts() -> None:
    with python(PARENT) as process:
        assert len(process_tree(process.pid)) == 2
        memory = tree_memory(process.pid)
    assert memory is not None
    assert memory.peak_rss_bytes > 96 * MIB


def test_cpu_time_counts_what_the_process_used() -> None:
    with python(BURNS) as process:
        assert tree_cpu_s(process.pid) >= 0.25


def test_mapped_files_are_not_private_memory(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(MIB) * 64)
    script = f"""
import mmap
with open({str(path)!r}, "rb") as stream:
    view = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
sum(view[at] for at in range(0, len(view), 4096))
print(flush=True); input()
"""
    with python(script) as process:
        memory = tree_memory(process.pid)
    assert memory is not None
    assert memory.rss_bytes > 64 * MIB
    assert memory.private_bytes < 64 * MIB


def test_a_stopped_process_and_its_children_are_gone() -> None:
    with python(PARENT) as process:
        child = process_tree(process.pid)[1]
    deadline = time.monotonic() + 10
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert tree_memory(process.pid) is None
    assert tree_cpu_s(process.pid) == 0


def test_the_environment_describes_the_machine_without_naming_it() -> None:
    captured = capture_environment()
    assert captured.cpu
    assert captured.usable_cores == len(os.sched_getaffinity(0))
    assert captured.memory_bytes > 1 << 28
    assert captured.packages["torch"].startswith("2.")
    text = captured.model_dump_json()
    assert os.uname().nodename not in text
    assert str(Path.home()) not in text.replace('"/"', "")


def test_cache_sizes_are_read_with_their_units() -> None:
    sizes = {"32K": 32 << 10, "32768K": 32 << 20, "1M": MIB, "512": 512, "": 0, "oops": 0}
    assert {text: environment._parse_size(text) for text in sizes} == sizes


def test_shares_of_a_run_that_did_nothing_lie_between_none_and_all() -> None:
    meter = NoiseMeter()
    for own_cpu_s in (0.0, 1e9):
        noise = meter.noise(own_cpu_s)
        assert 0 <= noise.foreign_share <= 1
        assert 0 <= noise.steal_share <= 1
