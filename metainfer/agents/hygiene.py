"""Text from specs, contracts and findings on its way into a prompt: it is data, and stays recognisable as such."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_HTML_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_TAG = re.compile(
    r"<(/?)(contracts?|reference|interfaces|deployment|findings|budget|file|objections|difference|present|profile)\b",
    re.IGNORECASE,
)
"""Tags that mark data in our prompts; data must not be able to end itself."""
_LINE_CHARACTERS = "\n\t"


def complaints(text: str) -> Iterator[str]:
    """What a reviewer of `text` would not see, or would see otherwise than a model does."""
    for number, line in enumerate(text.splitlines(), start=1):
        for character in line:
            if _is_invisible(character):
                name = unicodedata.name(character, f"U+{ord(character):04X}")
                yield f"line {number} holds the invisible character {name}"
                break
    for match in _HTML_COMMENT.finditer(text):
        yield f"line {text.count(chr(10), 0, match.start()) + 1} holds an HTML comment, which many viewers hide"


def as_data(text: str) -> str:
    """`text` without what people cannot see, and without tags that would end the data around it."""
    visible = "".join(c for c in _HTML_COMMENT.sub("", text) if c in _LINE_CHARACTERS or not _is_invisible(c))
    return _TAG.sub(r"<\1 \2", visible).strip()


def as_code(text: str) -> str:
    """Code as data, line by line as it is: what people cannot see is spelled out, for it belongs to what is judged."""
    shown = "".join(_spelled(c) if _is_invisible(c) else c for c in text)
    return _TAG.sub(r"<\1 \2", shown)


def _spelled(character: str) -> str:
    point = ord(character)
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _is_invisible(character: str) -> bool:
    """Controls, formats (zero width, direction, tags), private use, and blanks that look like nothing."""
    category = unicodedata.category(character)
    if character in _LINE_CHARACTERS:
        return False
    return category in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp") or character in "\u115f\u1160\u3164\uffa0\u2800"
