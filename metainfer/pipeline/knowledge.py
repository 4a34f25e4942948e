"""The knowledge base of a commit, laid out as files: generation and gates read the base, never the work tree."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.errors import RefusedError
from metainfer.files import pretty_json
from metainfer.forge.pinned import Pin, read_pinned, submodule_url

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class HoldsTrees(Protocol):
        """A repository that files can be read from: a forge, or the objects of a checkout."""

        def read_tree(self, ref: str, folder: str) -> Mapping[str, bytes]: ...

        def read_file(self, ref: str, path: str) -> bytes | None: ...

        def read_link(self, ref: str, path: str) -> str | None: ...


_KEPT_EXPORTS = 4
_PINNED = "pinned.json"
"""Beside an export: where a shared knowledge base is from."""


def export_knowledge(repository: HoldsTrees, commit: str, state: Path) -> Path:
    """Write `ckb/` as of `commit` below `state` and return its path; made once per commit, whole or not at all."""
    folder = state / "base" / commit
    if (folder / "ckb").is_dir():
        return folder / "ckb"
    files = repository.read_tree(commit, "ckb") or _shared(repository, commit)
    if not files:
        raise RefusedError(f"commit {commit[:12]} holds no ckb/: there is no knowledge to generate from")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".export-"))
    try:
        for path, data in files.items():
            target = scratch / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        # Another run may have exported the same commit meanwhile; its files are the same.
        if not folder.exists():
            os.rename(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _drop_old(folder.parent, keep=folder)
    return folder / "ckb"


def pinned_elsewhere(ckb_root: Path) -> str | None:
    """Where the exported knowledge base is kept, if it is shared with other repositories: in words, else None."""
    file = ckb_root.parent / _PINNED
    if not file.is_file():
        return None
    pin = json.loads(file.read_bytes())
    return f"{pin['url']} at {pin['commit'][:12]}"


def _shared(repository: HoldsTrees, commit: str) -> dict[str, bytes]:
    """The files of a submodule at ckb/, read from the repository that it is pinned to."""
    pinned = repository.read_link(commit, "ckb")
    if pinned is None:
        return {}
    url = submodule_url(repository.read_file(commit, ".gitmodules") or b"", "ckb")
    if url is None:
        raise RefusedError(f"commit {commit[:12]}: ckb/ is a submodule, and .gitmodules does not say of what")
    files = {f"ckb/{path}": data for path, data in read_pinned(Pin(url, pinned, pinned)).items()}
    return files | {_PINNED: pretty_json({"url": url, "commit": pinned})}


def _drop_old(exports: Path, keep: Path) -> None:
    folders = sorted((f for f in exports.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime, reverse=True)
    for folder in folders[_KEPT_EXPORTS:]:
        if folder != keep:
            shutil.rmtree(folder, ignore_errors=True)
