"""The checkout that a job works in, read by commit: what lies in the work tree is nobody's evidence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from metainfer.errors import InputError
from metainfer.forge.plumbing import Repository, TreeEntry

_SHA = re.compile(r"[0-9a-f]{40}")
NO_COMMIT = "0" * 40
"""What GitHub calls the commit before the first."""


class Checkout:
    """The Git objects of the repository at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._repo = Repository(root / ".git")

    def commit(self, revision: str) -> str:
        """The full id of a commit. InputError says that it was not fetched."""
        found = self._repo.commit_at(revision)
        if found is None:
            raise InputError(f"{revision!r} names no commit of {self.root}; fetch it (checkout: fetch-depth: 0)")
        return found

    def tree(self, commit: str, folder: str) -> dict[str, TreeEntry]:
        """Every file below a folder: equal ids mean equal content."""
        return self._repo.tree(commit, folder)

    def read(self, commit: str, path: str) -> bytes | None:
        """The content of a file at a commit; None if there is none."""
        return self._repo.blobs([f"{commit}:{path}"])[0]

    def read_tree(self, ref: str, folder: str) -> dict[str, bytes]:
        """All files below a folder at a commit, by their path from the root."""
        paths = sorted(self._repo.tree(ref, folder))
        contents = self._repo.blobs([f"{ref}:{path}" for path in paths])
        return {path: data for path, data in zip(paths, contents, strict=True) if data is not None}

    def changed(self, base: str, head: str, folders: Sequence[str] = ()) -> list[str]:
        """Paths that differ between two commits, renames told as both paths."""
        where = ["--", *folders] if folders else []
        out = self._repo.read("diff-tree", "-r", "-z", "--name-only", "--no-renames", base, head, *where)
        return sorted(filter(None, out.decode("utf-8", "surrogateescape").split("\0")))

    def merge_base(self, one: str, other: str) -> str:
        """The commit that two lines of work began from. InputError if they have none in common."""
        found = self._repo.merge_base(one, other)
        if found is None:
            raise InputError(f"{one[:12]} and {other[:12]} have no history in common; fetch both in full")
        return found

    def holds(self, older: str, newer: str) -> bool:
        """Whether `older` is `newer` or lies in its history."""
        return self._repo.is_ancestor(older, newer)


def full_sha(text: str) -> str:
    """`text`, if it is a whole commit id. InputError otherwise: names move."""
    if not _SHA.fullmatch(text):
        raise InputError(f"{text!r} is no commit; write its 40 hex digits")
    return text
