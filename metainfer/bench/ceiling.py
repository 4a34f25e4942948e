"""What this machine can do at best, right now: memory read in GB/s and fp32 products in GFLOP/s.

The rate of shared memory swings within minutes, so a reading is taken before and after every measurement, and each
reading is the best of several kernels: a single one would flatter the engine that happens to beat it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from metainfer.bench.environment import last_cache_bytes

if TYPE_CHECKING:
    import torch

MIN_STREAM_BYTES = 512 << 20
L3_MULTIPLE = 10
"""A reading streams at least so many times the last cache, so that what is read comes from memory."""
GEMM_SHAPES = ((512, 4864, 896), (512, 896, 4864), (1024, 1024, 1024), (2048, 2048, 512))
"""(m, n, k) of the products tried: wide and narrow ones as in prefill, and square ones."""
_READ_PASSES = 2
_GEMM_PASSES = 2
_COMPILE = ("g++", "-O3", "-std=c++17", "-mavx2", "-fPIC", "-shared")
_SOURCE = Path(__file__).with_name("read_kernel.cpp")


class Ceiling(BaseModel):
    """One reading: the best of each kind, and what every kernel reached."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_gb_s: float
    compute_gflop_s: float
    memory_kernels: dict[str, float]
    """GB/s by kernel."""
    compute_shapes: dict[str, float]
    """GFLOP/s by `m x n x k`."""
    streamed_bytes: int
    seconds: float


class CeilingMeter:
    """Takes readings with `threads` threads. Holds its buffer between readings: use as a context manager.

    `stream_bytes` is what one pass reads; by default enough that caches do not help. `shapes`: the products tried.
    """

    def __init__(
        self, threads: int, *, stream_bytes: int | None = None, shapes: Sequence[tuple[int, int, int]] = GEMM_SHAPES
    ) -> None:
        import torch

        self._threads = threads
        self._shapes = shapes
        stream_bytes = stream_bytes or default_stream_bytes(last_cache_bytes())
        self._stream_bytes = stream_bytes // (256 * threads) * (256 * threads)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ceiling")
        # Written once: pages that were never written all map to one page of zeros, which the cache holds.
        self._buffer = torch.ones(self._stream_bytes // 4, dtype=torch.float32)
        self.notes: list[str] = []
        """Kernels that could not be tried, and why."""
        self._kernels = self._read_kernels()

    def __enter__(self) -> CeilingMeter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown()
        del self._buffer, self._kernels

    def take(self) -> Ceiling:
        """Run every kernel and keep the best pass of each: about a second on a machine of two cores."""
        import torch

        began = time.monotonic()
        threads_before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                memory = {
                    name: self._stream_bytes / _best_seconds(kernel, _READ_PASSES) / 1e9
                    for name, kernel in self._kernels.items()
                }
                compute = {_shape_name(shape): _gemm_gflop_s(shape) for shape in self._shapes}
        finally:
            torch.set_num_threads(threads_before)
        return Ceiling(
            memory_gb_s=max(memory.values()),
            compute_gflop_s=max(compute.values()),
            memory_kernels=memory,
            compute_shapes=compute,
            streamed_bytes=self._stream_bytes,
            seconds=time.monotonic() - began,
        )

    def _read_kernels(self) -> dict[str, Callable[[], object]]:
        import torch

        halves = self._buffer.view(torch.bfloat16)
        integers = self._buffer.view(torch.int32)
        kernels: dict[str, Callable[[], object]] = {
            "torch fp32 sum": self._buffer.sum,
            "torch bf16 sum": halves.sum,
            "torch int32 max": integers.max,
        }
        try:
            library = ctypes.CDLL(str(build_read_kernel(kernel_cache())))
        except (OSError, subprocess.SubprocessError) as error:
            self.notes.append(f"the C++ read kernels could not be built, so the ceiling may read low: {error}")
            return kernels
        for name in ("read_plain", "read_prefetch"):
            function = getattr(library, name)
            function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint64
            kernels[f"C++ AVX2 {name.removeprefix('read_')}"] = self._in_threads(function)
        return kernels

    def _in_threads(self, function: Callable[[int, int], int]) -> Callable[[], int]:
        """`function` over equal parts of the buffer, one per thread; ctypes lets go of the interpreter's lock."""
        part = self._stream_bytes // self._threads
        starts = [self._buffer.data_ptr() + part * index for index in range(self._threads)]

        def run() -> int:
            folded = 0
            for word in self._pool.map(function, starts, [part] * self._threads):
                folded ^= word
            return folded

        return run


def better(before: Ceiling, after: Ceiling) -> tuple[float, float]:
    """(GB/s, GFLOP/s) that a measurement between two readings is held against: the better of the two, each."""
    return (
        max(before.memory_gb_s, after.memory_gb_s),
        max(before.compute_gflop_s, after.compute_gflop_s),
    )


def default_stream_bytes(cache_bytes: int) -> int:
    """What one pass must read where the last cache has `cache_bytes` (0: not known)."""
    return max(MIN_STREAM_BYTES, L3_MULTIPLE * cache_bytes)


def kernel_cache() -> Path:
    """Where built kernels are kept."""
    root = os.environ.get("METAINFER_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "metainfer") / "bench"


def build_read_kernel(folder: Path) -> Path:
    """Compile the read kernels into `folder` unless they are there. Raises OSError or SubprocessError."""
    source = _SOURCE.read_bytes()
    name = hashlib.sha256(source + " ".join(_COMPILE).encode()).hexdigest()[:16]
    library = folder / f"read_kernel-{name}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        built = Path(scratch) / library.name
        command = [*_COMPILE, "-o", str(built), str(_SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        built.replace(library)
    return library


def _best_seconds(work: Callable[[], object], passes: int) -> float:
    best = float("inf")
    for _ in range(passes):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def _gemm_gflop_s(shape: tuple[int, int, int]) -> float:
    import torch

    m, n, k = shape
    left, right = torch.ones(m, k), torch.ones(n, k)
    out = torch.empty(m, n)

    def multiply() -> torch.Tensor:
        return torch.mm(left, right.t(), out=out)

    multiply()  # the first product of a shape plans the work and touches its pages
    return 2 * m * n * k / _best_seconds(multiply, _GEMM_PASSES) / 1e9


def _shape_name(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))
