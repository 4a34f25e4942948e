"""What a person may tell the bot by a comment: `/metainfer regenerate`, `retry`, or `explain [FILE:LINE]`.

Only the first line counts, and only as it stands here: a command quoted in a discussion, or mistyped, does nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

WORD = "/metainfer"
Action = Literal["regenerate", "retry", "explain"]
_ORDER = re.compile(r"/metainfer (regenerate|retry|explain)(?: ([A-Za-z0-9_./+-]{1,300}):([1-9][0-9]{0,6}))?")
_LOOKS_LIKE = re.compile(r"/metainfer(?: .{0,200})?")
USAGE = (
    "I know `/metainfer regenerate`, `/metainfer retry`, `/metainfer explain` and `/metainfer explain FILE:LINE`, "
    "alone on the first line of a comment."
)


@dataclass(frozen=True, slots=True)
class Order:
    """One command. `file` and `line` (from 1) are set for `explain FILE:LINE` alone."""

    action: Action
    file: str = ""
    line: int = 0


def parse_order(body: str) -> Order | None:
    """The command of a comment; None if its first line is none."""
    first = body.split("\n", 1)[0].removesuffix("\r").rstrip(" ")
    found = _ORDER.fullmatch(first)
    if not found:
        return None
    action, file, line = found.groups()
    match action:
        case "explain":
            return Order("explain", file or "", int(line or 0))
        case "regenerate" | "retry" if file is None:
            return Order(action)
    return None


def is_meant(body: str) -> bool:
    """Whether somebody tried to give a command, so that silence would puzzle them."""
    return bool(_LOOKS_LIKE.fullmatch(body.split("\n", 1)[0].removesuffix("\r")))
