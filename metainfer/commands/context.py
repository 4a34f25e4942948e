"""Where a command runs: the repository, its work folder, the cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from metainfer.errors import InputError


@dataclass(frozen=True)
class Workspace:
    """The repository that a command works for."""

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace:
        """The Git repository around `start` (default: here). InputError outside of one."""
        here = (start or Path.cwd()).resolve()
        for folder in (here, *here.parents):
            if (folder / ".git").exists():
                return cls(folder)
        raise InputError(
            f"{here} is not inside a Git repository; run this where specs/ and ckb/ live, or `git init` first"
        )

    @property
    def state(self) -> Path:
        """Run records, candidates and scratch data; ignored by Git, safe to delete between runs."""
        return self.root / ".metainfer"

    def engine_dir(self, engine: str) -> Path:
        return self.root / "engines" / engine


def cache_root() -> Path:
    """Converted models and downloads: `$METAINFER_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("METAINFER_CACHE") or Path.home() / ".cache" / "metainfer")
