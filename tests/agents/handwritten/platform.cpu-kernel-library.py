"""The C++ files of the engine, built once and loaded."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch  # noqa: F401  (its libgomp must be the first in the process)

_COMMAND = ("g++", "-O3", "-mavx2", "-mfma", "-fopenmp", "-shared", "-fPIC", "-std=c++17")
_NEEDED = ("avx2", "fma")


@functools.cache
def load_kernels() -> ctypes.CDLL:
    """The library of all csrc/*.cpp; built if no equal one is kept. RuntimeError where that cannot be."""
    _check_processor()
    sources = Path(__file__).parent / "csrc"
    kept = Path(os.environ.get("METAINFER_KERNELS") or Path.home() / ".cache" / "metainfer" / "kernels")
    library = kept / f"{_key(sources)}.so"
    if not library.exists():
        _build(sources, library)
    return ctypes.CDLL(str(library))


def _check_processor() -> None:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    if missing := [flag for flag in _NEEDED if flag not in flags]:
        raise RuntimeError(f"this processor lacks {', '.join(missing)}, which the kernels are built for")


def _key(sources: Path) -> str:
    """Hash of all that decides what is built. What was built before is found without a compiler."""
    whole = hashlib.sha256(" ".join(_COMMAND).encode())
    for path in sorted(sources.iterdir()):
        if path.is_file():
            whole.update(f"\0{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def _build(sources: Path, library: Path) -> None:
    """Aside, then renamed: nobody ever sees half a library."""
    compiler = shutil.which(_COMMAND[0])
    if compiler is None:
        raise RuntimeError("the kernels need g++, which is not here; install the package g++ (apt install g++)")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=library.parent) as aside:
        built = Path(aside, library.name)
        files = [str(path) for path in sorted(sources.glob("*.cpp"))]
        # The empty file behind the others is what a library is made of where no unit brought a C++ file.
        command = [compiler, *_COMMAND[1:], "-o", str(built), *files, "-x", "c++", os.devnull]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"the kernels do not build: {' '.join(command)}\n{result.stderr.strip()}")
        built.replace(library)
