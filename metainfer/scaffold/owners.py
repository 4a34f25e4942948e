"""CODEOWNERS with owners for everything that decides what engines are: added beside what is there, never over it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metainfer.errors import InputError
from metainfer.forge.codeowners import LOCATIONS, parse_codeowners
from metainfer.scaffold.plan import Wanted, read_present

_OWNER = re.compile(r"@[\w.-]+(?:/[\w.-]+)?|[^@\s#]+@[^@\s#]+")
FOLDERS = ("ckb", "specs", "engines", ".github")
_HEAD = "# What metainfer makes engines from, and what it made (the last line that matches a path decides)."
_FIRST = "# Who must approve what. With branch protection, GitHub demands a review from these owners."


@dataclass(frozen=True, slots=True)
class Ownership:
    """CODEOWNERS as it should be, and what a person must know about it."""

    file: Wanted | None
    """None: the present file says all that is needed."""
    notes: tuple[str, ...] = ()


def check_owner(text: str) -> str:
    """An owner as CODEOWNERS writes one. InputError for anything else."""
    if not _OWNER.fullmatch(text):
        raise InputError(f"{text!r} is no code owner; write @user, @org/team or an e-mail address")
    return text


def unowned(root: Path) -> list[str]:
    """The folders of `FOLDERS` that nobody owns yet: for these an owner must be named."""
    text = _text(_present(root)[1])
    rules = parse_codeowners(text)
    return [folder for folder in FOLDERS if not rules.owners(_any_file(folder))]


def plan_owners(root: Path, given: Mapping[str, Sequence[str]], *, submodule: bool = False) -> Ownership:
    """Add a line for each folder that no line of its own speaks of. `given`: folder → owners that a person named.

    Without named owners, whoever owns the folder by a more general line keeps it. InputError where nobody would.
    """
    path, data = _present(root)
    text = _text(data)
    rules = parse_codeowners(text)
    notes = [f"{path}: {error}; GitHub skips that line" for error in rules.errors]
    last: list[str] = []
    before: dict[int, list[str]] = {}
    for folder in FOLDERS:
        owners = rules.owners(_any_file(folder))
        named = tuple(map(check_owner, given.get(folder, ())))
        parts = [rule for rule in rules.rules if _top(rule.pattern) == folder]
        if any(_is_whole(rule.pattern, folder) for rule in parts) or (owners and not named):
            notes += _unchanged_notes(path, folder, owners, named)
            continue
        if not named:
            raise InputError(f"nobody would own {folder}/; name an owner with --owner @user, @org/team or an address")
        lines = [f"{pattern:<14} {' '.join(named)}" for pattern in _patterns(folder, submodule)]
        if parts:  # rules for parts of the folder come after ours, or ours would take them over
            before.setdefault(min(rule.line for rule in parts), []).extend(lines)
        else:
            last += lines
    if not last and not before:
        return Ownership(None, tuple(notes))
    content = _with_lines(text, before, last)
    now = parse_codeowners(content)
    notes += [f"{path}: {folder}/ has no owner by the last line that matches it; give it one"
              for folder in FOLDERS if not now.owners(_any_file(folder))]  # fmt: skip
    return Ownership(Wanted(path, content.encode(), owned=False), tuple(dict.fromkeys(notes)))


def _unchanged_notes(path: str, folder: str, owners: Sequence[str], named: Sequence[str]) -> list[str]:
    if not owners:
        return [f"{path}: {folder}/ has no owner by the last line that matches it; give it one"]
    if named and {o.casefold() for o in owners} != {o.casefold() for o in named}:
        return [f"{path}: {folder}/ keeps its owners {' '.join(owners)}; edit the file to change them"]
    return []


def _with_lines(text: str, before: Mapping[int, Sequence[str]], last: Sequence[str]) -> str:
    """`text` with lines put in before those of the given numbers (from 1), and at its end; no other one is touched."""
    end = "\r\n" if "\r\n" in text else "\n"
    lines = (text if text.endswith("\n") or not text else text + end).split("\n")[:-1]
    for number in sorted(before, reverse=True):
        lines[number - 1 : number - 1] = [line + end[:-1] for line in before[number]]
    if last:
        added = ["", _HEAD, *last] if lines else [_FIRST, "", _HEAD, *last]
        lines += [line + end[:-1] for line in added]
    return "\n".join(lines) + "\n"


def _patterns(folder: str, submodule: bool) -> list[str]:
    # A submodule is one entry, not a folder, in the eyes of CODEOWNERS; what it points at stands in .gitmodules.
    return ["/ckb", "/.gitmodules"] if folder == "ckb" and submodule else [f"/{folder}/"]


def _any_file(folder: str) -> str:
    return f"{folder}/any/file"


def _top(pattern: str) -> str:
    return pattern.strip("/").split("/")[0]


def _is_whole(pattern: str, folder: str) -> bool:
    """Whether a pattern stands for everything below the folder."""
    return pattern.strip("/") in (folder, f"{folder}/**")


def _present(root: Path) -> tuple[str, bytes | None]:
    """The file that GitHub reads, or the place for a new one."""
    for path in LOCATIONS:
        if (data := read_present(root, path)) is not None:
            return path, data
    return LOCATIONS[0], None


def _text(data: bytes | None) -> str:
    try:
        return (data or b"").decode()
    except UnicodeDecodeError as error:
        raise InputError("CODEOWNERS is not text in UTF-8; mend it first") from error
