"""An engine that is merged on the forge but not in the work tree, laid out as files."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from metainfer.errors import InputError


def checkout_engine(repo_root: Path, state: Path, engine: str) -> Path:
    """Write `engines/<engine>` of the forge's base below `state` and return its path. InputError if it is not there."""
    from metainfer.forge.setup import open_forge

    forge = open_forge(repo_root)
    base = forge.base_sha()
    folder = state / "engines" / base / engine
    if folder.is_dir():
        return folder
    prefix = f"engines/{engine}/"
    files = forge.read_tree(base, prefix.rstrip("/"))
    if not files:
        pull = forge.find_open(engine)
        hint = f"; it waits in pull request #{pull.number}, merge that first" if pull else "; `metainfer run` makes it"
        raise InputError(f"no engine named {engine} in engines/ or on the forge's base{hint}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".checkout-"))
    try:
        for path, data in files.items():
            target = scratch / path.removeprefix(prefix)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        if not folder.exists():
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder
