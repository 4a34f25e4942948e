"""What would change in a repository, file by file, and why some files are left as they are.

A file that `metainfer init` wrote is known again by its digest, kept in a record that is committed with it. As long
as the digest fits, a newer version may replace the file; once a person has edited or removed it, it is theirs.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metainfer.errors import InputError
from metainfer.files import pretty_json, read_regular, sha256_bytes

RECORD = ".github/metainfer-init.json"
"""Path → digest of what was written there last."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file as it should be. `owned`: written as a whole; otherwise the content is the present one with additions."""

    path: str
    content: bytes
    owned: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """A file to write. `before` None: it is not there yet."""

    path: str
    before: bytes | None
    after: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """A generated file that a person edited (`theirs`) or removed (None); `ours` is what would stand there."""

    path: str
    theirs: bytes | None
    ours: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run would do. Empty `changes` and `folders`: nothing to do."""

    changes: tuple[Change, ...] = ()
    kept: tuple[Kept, ...] = ()
    folders: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """New folders that are written at once: path → its files by relative path."""
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.folders


def make_plan(
    root: Path,
    wanted: Iterable[Wanted],
    *,
    folders: Mapping[str, Mapping[str, bytes]] | None = None,
    notes: Iterable[str] = (),
    force: bool = False,
) -> Plan:
    """Compare what is wanted with what is there. Reads only. InputError for a file that cannot be read or replaced."""
    recorded = read_record(root)
    new_record = dict(recorded)
    changes: list[Change] = []
    kept: list[Kept] = []
    for file in sorted(wanted, key=lambda item: item.path):
        before = read_present(root, file.path)
        if file.owned and not force and _is_a_persons(before, file, recorded.get(file.path)):
            kept.append(Kept(file.path, before, file.content))
            continue
        if before != file.content:
            changes.append(Change(file.path, before, file.content))
        if file.owned:
            new_record[file.path] = sha256_bytes(file.content)
    if new_record != recorded and (recorded or changes):
        changes.append(Change(RECORD, read_present(root, RECORD), pretty_json({"files": new_record})))
    return Plan(tuple(changes), tuple(kept), dict(folders or {}), tuple(notes))


def _is_a_persons(before: bytes | None, file: Wanted, digest: str | None) -> bool:
    if before == file.content:
        return False
    if before is None:
        return digest is not None  # written once, and removed since
    return digest != sha256_bytes(before)


def read_record(root: Path) -> dict[str, str]:
    """What earlier runs wrote. InputError if the record is not one: without it, edits could not be told."""
    data = read_present(root, RECORD)
    if data is None:
        return {}
    try:
        files = json.loads(data)["files"]
        return {str(path): str(digest) for path, digest in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{root / RECORD}: not a record of `metainfer init`; put it back from Git, or remove it (then every "
            "generated file counts as yours)"
        ) from error


def read_present(root: Path, path: str) -> bytes | None:
    """The content of `path` in `root`; None if there is nothing. InputError where a link or folder is in the way."""
    place = root
    for part in path.split("/"):
        place = place / part
        if place.is_symlink():
            raise InputError(f"{place}: is a link, which `metainfer init` does not follow; put a plain file there")
    if not place.exists():
        blocked = next((p for p in place.parents if p != root and p.is_relative_to(root) and p.is_file()), None)
        if blocked:
            raise InputError(f"{blocked}: is a file, and {path} needs a folder there")
        return None
    if place.is_dir():
        raise InputError(f"{place}: is a folder, and a file is needed there")
    return read_regular(place)


def unified(path: str, before: bytes | None, after: bytes | None) -> Iterator[str]:
    """The lines of a unified diff, as Git would show it."""
    yield from (
        line.rstrip("\n")
        for line in difflib.unified_diff(
            _lines(before),
            _lines(after),
            fromfile=f"a/{path}" if before is not None else "/dev/null",
            tofile=f"b/{path}" if after is not None else "/dev/null",
        )
    )


def _lines(data: bytes | None) -> list[str]:
    text = (data or b"").decode("utf-8", "replace")
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
        lines.append("\\ No newline at end of file\n")
    return lines
