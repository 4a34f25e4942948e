"""Builds the C++ kernels once per machine and loads them."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch  # noqa: F401  loaded first: the kernels then run on torch's own OpenMP threads

_SOURCES = Path(__file__).parent / "csrc"
_COMPILER = ("g++", "-O3", "-mavx2", "-mfma", "-fopenmp", "-shared", "-fPIC", "-std=c++17")
_BUILD_TIMEOUT_S = 300


@functools.cache
def load_kernels() -> ctypes.CDLL:
    """The library of all `csrc/*.cpp`, built if no process built these very sources before.

    Raises RuntimeError if the CPU lacks AVX2 or FMA, or if the library cannot be built.
    """
    _check_cpu()
    digest = hashlib.sha256("\0".join(_COMPILER).encode())
    for path in sorted(_SOURCES.iterdir()):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    cache = os.environ.get("METAINFER_KERNELS") or Path.home() / ".cache" / "metainfer" / "kernels"
    library = Path(cache) / f"{digest.hexdigest()[:32]}.so"
    if not library.exists():
        _build(library)
    return ctypes.CDLL(str(library))


def _check_cpu() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    if missing := {"avx2", "fma"}.difference(flags):
        raise RuntimeError(f"this engine needs a CPU with AVX2 and FMA; this one lacks {', '.join(sorted(missing))}")


def _build(library: Path) -> None:
    """Compile into a private folder, then rename: whoever else starts now sees no library or a whole one."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as scratch:
        built = Path(scratch) / library.name
        command = [*_COMPILER, "-o", str(built), *map(str, sorted(_SOURCES.glob("*.cpp")))]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_TIMEOUT_S)
        except FileNotFoundError:
            raise RuntimeError("the kernels need a compiler: install g++ (apt install g++)") from None
        if result.returncode != 0:
            raise RuntimeError(f"the kernels do not build:\n{' '.join(command)}\n{result.stderr}")
        os.replace(built, library)
