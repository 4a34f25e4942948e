"""Commits and differences as Git tells them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.github.bare import Bare

_STATUS = {"A": "added", "M": "modified", "D": "removed", "R": "renamed", "C": "copied", "T": "changed"}
_FORMAT = "%H%x00%T%x00%P%x00%an%x00%ae%x00%aI%x00%cn%x00%ce%x00%cI%x00%B%x00%x01"


@dataclass(frozen=True, slots=True)
class ChangedFile:
    path: str
    sha: str
    status: str
    additions: int
    deletions: int
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    sha: str
    tree: str
    parents: tuple[str, ...]
    author: tuple[str, str, str]
    """Name, address, time."""
    committer: tuple[str, str, str]
    message: str


def changed_files(bare: Bare, base: str, head: str) -> list[ChangedFile]:
    """What a head changes since it left the base, renames found as GitHub finds them."""
    start = bare.run("merge-base", base, head).stdout.decode().split()
    return differences(bare, start[0] if start else base, head)


def differences(bare: Bare, old: str, new: str) -> list[ChangedFile]:
    """What lies between two commits or trees."""
    raw = iter(bare.raw("diff-tree", "-r", "-M", "-z", "--raw", old, new).decode("utf-8", "replace").split("\0"))
    lines = _line_counts(bare, old, new)
    found = []
    for meta in raw:
        if not meta.startswith(":"):
            continue
        _, _, before, after, kind = meta.split(" ")
        path = next(raw)
        previous = None
        if kind[0] in "RC":
            previous, path = path, next(raw)
        added, removed = lines[path]
        sha = before if kind[0] == "D" else after
        found.append(ChangedFile(path, sha, _STATUS[kind[0]], added, removed, previous))
    return found


def _line_counts(bare: Bare, old: str, new: str) -> dict[str, tuple[int, int]]:
    parts = iter(bare.raw("diff-tree", "-r", "-M", "-z", "--numstat", old, new).decode("utf-8", "replace").split("\0"))
    counts = {}
    for part in parts:
        if not part:
            continue
        added, removed, path = part.split("\t", 2)
        if not path:  # a rename: the two names follow
            next(parts)
            path = next(parts)
        counts[path] = (int(added), int(removed)) if added != "-" else (0, 0)
    return counts


def patch(bare: Bare, old: str, new: str, file: ChangedFile) -> str | None:
    """The hunks of one file; None for a binary one."""
    names = [name for name in (file.previous, file.path) if name]
    text = bare.raw("diff-tree", "-r", "-M", "-p", old, new, "--", *names).decode("utf-8", "replace")
    at = text.find("\n@@")
    return text[at + 1 :].rstrip("\n") if at >= 0 else None


def commits(bare: Bare, *what: str, limit: int | None = None) -> list[Commit]:
    """Commits as `git log` lists them, newest first."""
    bounded = [f"--max-count={limit}"] if limit is not None else []
    out = bare.raw("log", f"--format={_FORMAT}", *bounded, *what).decode("utf-8", "replace")
    return list(_parsed(out))


def _parsed(out: str) -> Iterator[Commit]:
    for entry in out.split("\0\x01"):
        parts = entry.lstrip("\n").split("\0")
        if len(parts) < 10:
            continue
        author, committer = (parts[3], parts[4], parts[5]), (parts[6], parts[7], parts[8])
        yield Commit(parts[0], parts[1], tuple(parts[2].split()), author, committer, parts[9].rstrip("\n"))


def count_commits(bare: Bare, base: str, head: str) -> int:
    return int(bare.git("rev-list", "--count", f"{base}..{head}"))
