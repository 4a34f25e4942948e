"""An engine that the forge has, merged or proposed, and the work tree has not: laid out as files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from metainfer.errors import InputError, RefusedError
from metainfer.files import replace_folder
from metainfer.forge.paths import engine_folder, path_complaints
from metainfer.forge.plumbing import run_git
from metainfer.forge.protocol import Forge, PullRequest
from metainfer.forge.setup import open_forge, pull_command
from metainfer.generate.manifest import MANIFEST_NAME, altered_files, read_manifest


def checkout_engine(repo_root: Path, state: Path, engine: str) -> Path:
    """Write `engines/<engine>` of the forge's base below `state` and return its path. InputError if it is not there."""
    forge = open_forge(repo_root)
    base = forge.base_sha()
    prefix = engine_folder(engine)
    folder = state / "engines" / base / engine
    if folder.is_dir():
        return folder
    files = forge.read_tree(base, prefix)
    if not files:
        pull = forge.find_open(engine)
        waiting = f"it waits in pull request #{pull.number}: `metainfer pr checkout {pull.number}`" if pull else ""
        raise InputError(
            f"no engine named {engine} in engines/ or on the forge's base; {waiting or '`metainfer run` makes it'}"
        )
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


def checkout_pull(forge: Forge, pull: PullRequest, folder: Path) -> None:
    """Make `folder` the engine that the pull request's head holds. RefusedError if a path in it is not harmless."""
    prefix = engine_folder(pull.engine)
    files = forge.read_tree(pull.head, prefix)
    if complaints := path_complaints(files, [prefix]):
        listed = "\n".join(f"  - {complaint}" for complaint in complaints)
        raise RefusedError(f"pull request #{pull.number} was not written to {folder}, close it:\n{listed}")
    replace_folder(folder.resolve(), {path.removeprefix(prefix): data for path, data in files.items()})


def require_replaceable(folder: Path) -> None:
    """InputError if `folder` holds anything that could not be generated again."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / MANIFEST_NAME).is_file():
        raise InputError(f"{folder} is there already and not an engine; name another folder with --out")
    if changes := altered_files(folder, read_manifest(folder)):
        raise InputError(
            f"{folder} holds changes that would be lost ({changes[0]}); move them, or name another folder with --out"
        )


def way_to_merged(repo_root: Path, state: Path, engine: str) -> str | None:
    """How to get the forge's engine of that name, if it has one and it is not the work tree's; else None.

    A command, or, where a pull would bring nothing because the work tree is ahead, a folder with the merged engine.
    """
    forge = open_forge(repo_root)
    base = forge.base_sha()
    if _holds(repo_root, forge.read_tree(base, engine_folder(engine))):
        return None
    ahead = run_git(["-C", str(repo_root), "merge-base", "--is-ancestor", base, "HEAD"]).returncode == 0
    return str(checkout_engine(repo_root, state, engine)) if ahead else pull_command(forge)


def _holds(root: Path, files: Mapping[str, bytes]) -> bool:
    """Whether every one of the files lies below `root` as it is; what lies there besides does not count."""
    return all((root / path).is_file() and (root / path).read_bytes() == data for path, data in files.items())
