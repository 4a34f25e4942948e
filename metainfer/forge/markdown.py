"""Putting text that nobody vouches for into Markdown, so that it reads as text and does nothing else.

Reports hold what generated code printed and what a model wrote. On a forge such text could mention people, close
issues, hide itself in comments or in invisible characters, break out of a table, or, where a body is echoed into a
workflow's log, give the runner commands. Every function here returns text in which none of that works.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

# A break that renders as nothing, but ends what a forge recognises: a mention, an issue number, an address.
_BREAK = "&#8203;"
_SPECIAL = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "@": f"@{_BREAK}",
    "#": f"#{_BREAK}",
    **{character: f"\\{character}" for character in "\\`*_[]|~$"},
}
# Where to break addresses that forges link by themselves, the other spelling of issue numbers, and `::`.
_LINKS = re.compile(r"(?<=:)(?=:|//)|(?i:(?<=www)(?=\.))|(?i:(?<=gh)(?=-\d))")
_CODE_UNSAFE = str.maketrans({"`": "'", "|": "¦"})


def visible(text: str, *, keep_lines: bool = False) -> str:
    """Drop what cannot be seen: control, format, surrogate and private characters, and odd spaces.

    Line breaks become spaces, or stay if `keep_lines`; tabs become spaces. Terminal escape sequences lose their
    escape character and so their effect.
    """
    out = []
    for character in text.replace("\r\n", "\n").replace("\r", "\n"):
        if character == "\n":
            out.append("\n" if keep_lines else " ")
        elif character == "\t" or unicodedata.category(character) in ("Zs", "Zl", "Zp"):
            out.append(" ")
        elif unicodedata.category(character)[0] != "C" and not _is_invisible_mark(character):
            out.append(character)
    return "".join(out)


def inline(value: object, limit: int = 300) -> str:
    """`value` as plain text within a line or a table cell, at most about `limit` characters before escaping."""
    text = _shorten(" ".join(visible(_plain(value)).split()), limit)
    broken = _LINKS.sub("\u2060", text)
    escaped = "".join(_SPECIAL.get(character, character) for character in broken)
    return escaped.replace("\u2060", _BREAK)


def code(value: object, limit: int = 300) -> str:
    """`value` as inline code, where forges recognise neither mentions nor HTML."""
    text = _shorten(" ".join(visible(_plain(value)).split()), limit).translate(_CODE_UNSAFE)
    return f"`{disarm(text)}`" if text else ""


def block(lines: Iterable[str], limit: int = 500) -> list[str]:
    """The lines of a fenced code block, fences not included. Only safe between two `fence` lines."""
    return [disarm(_shorten(visible(line), limit).rstrip()) for line in lines]


def fence(lines: Iterable[str]) -> str:
    """A fence longer than any run of backticks in `lines`."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    return "`" * max(3, longest + 1)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table. Cells must come from `inline` or `code`."""
    head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return head + ["| " + " | ".join(cell or " " for cell in row) + " |" for row in rows]


def disarm(line: str) -> str:
    """Break what a workflow runner takes for a command in its log: `::name::` at the start, `##[name]` anywhere."""
    line = re.sub(r"^(\s*):(?=:)", r"\1: ", line)
    return line.replace("##[", "# #[")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _is_invisible_mark(character: str) -> bool:
    """Marks and fillers outside category C that render as nothing: variation selectors, Hangul and Braille blanks."""
    point = ord(character)
    variation = 0xFE00 <= point <= 0xFE0F or 0xE0100 <= point <= 0xE01EF
    return variation or point in (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)
