"""Where a command runs: the repository, its work folder, the cache, who is asking."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.errors import InputError

if TYPE_CHECKING:
    from metainfer.forge.protocol import Identity

_NAME_AND_EMAIL = re.compile(r"(?P<name>[^<>]+?)\s*<(?P<email>[^<>\s]+)>")


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


def identity(root: Path, override: str | None) -> Identity:
    """Who acts: `--as "Name <email>"`, or Git's user.name and user.email."""
    from metainfer.forge.protocol import Identity

    if override:
        if match := _NAME_AND_EMAIL.fullmatch(override.strip()):
            return Identity(match["name"], match["email"])
        if re.fullmatch(r"[^<>\s]+@[^<>\s]+", override):
            return Identity(override.partition("@")[0], override)
        raise InputError(f"--as {override!r}: write an e-mail address, or 'Name <e-mail>'")
    name, email = _git_config(root, "user.name"), _git_config(root, "user.email")
    if not email:
        raise InputError("Git does not know who you are: set `git config user.email`, or pass --as 'Name <e-mail>'")
    return Identity(name or email.partition("@")[0], email)


def _git_config(root: Path, key: str) -> str:
    result = subprocess.run(["git", "config", "--get", key], cwd=root, capture_output=True, text=True, check=False)
    return result.stdout.strip()
