"""A plan as a person reads it before anything is written: unified diffs, and what is left alone and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from metainfer.scaffold.plan import RECORD, unified
from metainfer.scaffold.repository import RepositoryPlan

_LONG = 120


def show(plan: RepositoryPlan, *, whole: bool = False) -> Iterator[str]:
    """Lines for a terminal. New folders and long new files are listed, or shown file by file if `whole`."""
    for change in plan.files.changes:
        count = change.after.count(b"\n")
        if change.path == RECORD:
            yield f"{'+' if change.before is None else '~'} {RECORD}: what was written here, to tell your edits by"
        elif change.before is None and count > _LONG and not whole:
            yield f"+ {change.path}: new, {count:,} lines (--full shows them)"
        else:
            yield from map(_printable, unified(change.path, change.before, change.after))
    for folder, files in plan.files.folders.items():
        yield from _folder(folder, files, whole=whole)
    if plan.pin is not None:
        yield f"+ ckb/ as a submodule of {plan.pin.url}, pinned to {plan.pin.ref} ({plan.pin.commit[:12]})"
    for kept in plan.files.kept:
        what = "edited since it was written, or your own" if kept.theirs is not None else "removed since it was written"
        yield f"kept: {kept.path}: {what}; --force would do this:"
        yield from (f"  {_printable(line)}" for line in unified(kept.path, kept.theirs, kept.ours))
    for note in plan.files.notes:
        yield f"note: {note}"


def _folder(folder: str, files: Mapping[str, bytes], *, whole: bool) -> Iterator[str]:
    if whole:
        for path, data in sorted(files.items()):
            yield from map(_printable, unified(f"{folder}/{path}", None, data))
        return
    lines = sum(data.count(b"\n") for data in files.values())
    yield f"+ {folder}/: {len(files)} new files, {lines:,} lines (--full shows them):"
    tops: dict[str, int] = {}
    for path in sorted(files):
        top = "/".join(path.split("/")[:2])
        tops[top] = tops.get(top, 0) + 1
    yield from (f"+   {folder}/{top}: {count} files" for top, count in tops.items())


def _printable(line: str) -> str:
    """A line as it is, but for what would move a terminal's cursor or colour it."""
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)
