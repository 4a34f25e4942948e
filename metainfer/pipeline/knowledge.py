"""The knowledge base of a commit, laid out as files: generation and gates read the base, never the work tree."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class HoldsTrees(Protocol):
        """A repository that files can be read from: a forge, or the objects of a checkout."""

        def read_tree(self, ref: str, folder: str) -> Mapping[str, bytes]: ...


_KEPT_EXPORTS = 4


def export_knowledge(repository: HoldsTrees, commit: str, state: Path) -> Path:
    """Write `ckb/` as of `commit` below `state` and return its path; made once per commit, whole or not at all."""
    folder = state / "base" / commit
    if (folder / "ckb").is_dir():
        return folder / "ckb"
    files = repository.read_tree(commit, "ckb")
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


def _drop_old(exports: Path, keep: Path) -> None:
    folders = sorted((f for f in exports.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime, reverse=True)
    for folder in folders[_KEPT_EXPORTS:]:
        if folder != keep:
            shutil.rmtree(folder, ignore_errors=True)
