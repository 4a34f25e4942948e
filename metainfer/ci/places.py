"""Errors as `file:line:column: what`, one a line, turned into annotations."""

from __future__ import annotations

import re

from metainfer.ci.actions import Annotation, Level

_PLACED = re.compile(r"(?P<file>[^\s:][^:\n]*):(?P<line>\d{1,7}):(?P<column>\d{1,7}): (?P<message>.+)")


def placed(text: str, file: str, level: Level = "error") -> list[Annotation]:
    """An annotation for each line of an error that says where; those that do not are about `file` as a whole.

    Paths that end like `file` are told as `file`: whoever read it may have had it elsewhere.
    """
    found: list[Annotation] = []
    rest: list[str] = []
    for line in text.splitlines():
        match = _PLACED.fullmatch(line.strip())
        if match is None:
            rest.append(line)
            continue
        given = match["file"]
        own = file if given == file or given.endswith(f"/{file}") else given
        found.append(Annotation(level, match["message"], own, int(match["line"]), int(match["column"])))
    if any(line.strip() for line in rest):
        found.append(Annotation(level, "\n".join(rest).strip(), file))
    return found
