"""Carries a plan out: every file whole or untouched, and after a failure everything as it was."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from metainfer.errors import ConflictError
from metainfer.files import replace_folder, write_atomic
from metainfer.scaffold.plan import Plan, read_present


def apply_plan(root: Path, plan: Plan) -> None:
    """Write the plan's files. ConflictError if one of them changed since the plan was made; nothing is written then."""
    for change in plan.changes:
        if read_present(root, change.path) != change.before:
            raise ConflictError(f"{change.path} changed while the plan was shown; run `metainfer init` again")
    for folder in plan.folders:
        if (root / folder).exists() and any((root / folder).iterdir()):
            raise ConflictError(f"{folder}/ appeared while the plan was shown; run `metainfer init` again")
    undo: list[tuple[Path, bytes | None]] = []
    made: list[Path] = []
    try:
        for folder, files in plan.folders.items():
            made.append(root / folder)
            replace_folder(root / folder, files)
        for change in plan.changes:
            path = root / change.path
            undo.append((path, change.before))
            write_atomic(path, change.after)
    except BaseException:
        for path, before in reversed(undo):
            _put_back(root, path, before)
        for folder_path in made:
            shutil.rmtree(folder_path, ignore_errors=True)
        raise


def _put_back(root: Path, path: Path, before: bytes | None) -> None:
    with contextlib.suppress(OSError):
        if before is not None:
            write_atomic(path, before)
            return
        path.unlink(missing_ok=True)
        for parent in path.parents:  # folders that only this run made are empty now
            if parent == root:
                return
            parent.rmdir()
