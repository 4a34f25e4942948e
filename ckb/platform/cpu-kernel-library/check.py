"""Checks of the kernel library: built once, for the named instruction set, on torch's threads; clear when it cannot be.

Most run on a copy of the engine's package with one small source in place of its kernels, and a cache of their own.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from metainfer.ckb.checks import Candidate, Finding

PROBE = """
#include <omp.h>
#include "constants.h"
#if !defined __AVX2__ || !defined __FMA__ || !defined _OPENMP
#error "not built for AVX2, FMA and OpenMP"
#endif
#if defined __BMI2__ || defined __AVX512F__
#error "built for this very machine, not for the named instruction set"
#endif
#ifdef __FAST_MATH__
#error "built with -ffast-math"
#endif
extern "C" int answer() { return ANSWER; }
extern "C" int threads() { return omp_get_max_threads(); }
"""
CONSTANTS = "#pragma once\nconstexpr int ANSWER = 42;\n"


def check_the_engines_own_kernels_load(c: Candidate) -> Iterator[Finding]:
    """The same library for every caller, and torch's OpenMP runtime in the process, not a second one."""
    first, second = c.unit("load_kernels")(), c.unit("load_kernels")()
    if not isinstance(first, ctypes.CDLL) or first is not second:
        yield Finding("check_the_engines_own_kernels_load", "two calls must give the same ctypes.CDLL")
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libgomp" in line}
    if len(mapped) > 1:
        yield Finding("check_the_engines_own_kernels_load", f"two OpenMP runtimes in one process: {sorted(mapped)}")


def check_builds_and_shares_threads(c: Candidate) -> Iterator[Finding]:
    """Flags as named; constants.h reaches the kernels; torch's thread count is the kernels'."""
    before = torch.get_num_threads()
    with _package(c) as load:
        library = load()
        if library.answer() != 42:
            yield Finding("check_builds_and_shares_threads", "the kernels do not see csrc/constants.h")
        try:
            torch.set_num_threads(before + 2)
            if library.threads() != before + 2:
                yield Finding("check_builds_and_shares_threads", "torch.set_num_threads does not reach the kernels")
        finally:
            torch.set_num_threads(before)


def check_cache_is_keyed_by_content(c: Candidate) -> Iterator[Finding]:
    """A second start builds nothing; a changed header builds anew; nothing half-made is left behind."""
    check = "check_cache_is_keyed_by_content"
    with tempfile.TemporaryDirectory(dir=c.tmp_path) as cache:
        with _package(c, cache) as load:
            load()
        built = _files(cache)
        if len(built) != 1:
            yield Finding(check, f"$METAINFER_KERNELS must hold one library and no more; it holds {sorted(built)}")
            return
        with _package(c, cache) as load, mock.patch.dict(os.environ, {"PATH": ""}):
            load()
        with _package(c, cache, constants=CONSTANTS.replace("42", "43")) as load:
            if load().answer() != 43:
                yield Finding(check, "a changed constants.h gets the old library")
        if _files(cache) & built != built or len(_files(cache)) != 2:
            yield Finding(check, f"two versions must lie side by side: {sorted(_files(cache))}")


def check_concurrent_starts(c: Candidate) -> Iterator[Finding]:
    """Several processes may start at once on a cold cache: each gets a whole library."""
    answers: list[object] = []

    def start_up(load: Callable[[], Any]) -> None:
        try:
            answers.append(load().answer())
        except Exception as error:
            answers.append(error)

    with tempfile.TemporaryDirectory(dir=c.tmp_path) as cache, ExitStack() as stack:
        loads = [stack.enter_context(_package(c, cache)) for _ in range(3)]
        starts = [threading.Thread(target=start_up, args=(load,)) for load in loads]
        for start in starts:
            start.start()
        for start in starts:
            start.join(timeout=120)
        if answers != [42, 42, 42]:
            yield Finding("check_concurrent_starts", f"three starts at once gave {answers}")
        if len(_files(cache)) != 1:
            yield Finding("check_concurrent_starts", f"left behind: {sorted(_files(cache))}")


def check_failures_are_clear(c: Candidate) -> Iterator[Finding]:
    """No compiler, a source that does not compile, an old CPU: a RuntimeError that says so, and no library."""
    with tempfile.TemporaryDirectory(dir=c.tmp_path) as cache:
        with _package(c, cache) as load, mock.patch.dict(os.environ, {"PATH": ""}):
            yield from _raises(load, "no compiler", "g++")
        with _package(c, cache, probe="extern int broken(;") as load:
            yield from _raises(load, "a broken source", "broken")
        with _package(c, cache) as load, _old_cpu():
            yield from _raises(load, "a CPU without AVX2", "avx2")
        if _files(cache):
            yield Finding("check_failures_are_clear", f"failures left {sorted(_files(cache))} in the cache")


@contextmanager
def _package(
    c: Candidate, cache: str | None = None, probe: str = PROBE, constants: str = CONSTANTS
) -> Iterator[Callable[[], Any]]:
    """`load_kernels` of a fresh copy of the engine's package, with `probe` for its only source."""
    unit = c.unit("load_kernels")
    source = Path(sys.modules[unit.__module__].__file__ or "")
    with tempfile.TemporaryDirectory(dir=c.tmp_path) as root:
        name = f"kernels_{Path(root).name}"
        package = Path(root) / name
        (package / "csrc").mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "csrc" / "probe.cpp").write_text(probe)
        (package / "csrc" / "constants.h").write_text(constants)
        for module in ("config.py", source.name):
            shutil.copy(source.parent / module, package)
        sys.path.insert(0, root)
        try:
            with mock.patch.dict(os.environ, {"METAINFER_KERNELS": cache or f"{root}/cache"}):
                importlib.invalidate_caches()
                yield importlib.import_module(f"{name}.{source.stem}").load_kernels
        finally:
            sys.path.remove(root)
            for loaded in [n for n in sys.modules if n.split(".")[0] == name]:
                del sys.modules[loaded]


def _files(folder: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


@contextmanager
def _old_cpu() -> Iterator[None]:
    """/proc/cpuinfo as a machine without AVX2 would show it, however it is read."""
    real = io.open

    def opened(file: Any, *args: Any, **kwargs: Any) -> Any:
        if str(file) != "/proc/cpuinfo":
            return real(file, *args, **kwargs)
        text = "processor : 0\nflags : fpu sse sse2 ssse3 sse4_1 sse4_2 avx fma\n"
        return io.BytesIO(text.encode()) if "b" in "".join(args[:1]) else io.StringIO(text)

    with mock.patch("io.open", opened), mock.patch("builtins.open", opened):
        yield


def _raises(load: Callable[[], Any], what: str, word: str) -> Iterator[Finding]:
    try:
        load()
    except RuntimeError as error:
        if word not in str(error).lower():
            yield Finding("check_failures_are_clear", f"{what}: the message does not mention {word}: {error}")
    except Exception as error:
        yield Finding("check_failures_are_clear", f"{what}: {type(error).__name__} in place of a RuntimeError")
    else:
        yield Finding("check_failures_are_clear", f"{what}: no error")
