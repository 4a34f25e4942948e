"""Comments that are kept current: one for each key, written once and edited in place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.errors import InputError
from metainfer.files import read_regular
from metainfer.forge.protocol import BOT

if TYPE_CHECKING:
    from metainfer.forge.protocol import Forge

_MAX_BYTES = 256 << 10
_KEY = re.compile(r"[a-z0-9:._/-]{1,60}")


def post_comment(forge: Forge, number: int, file: Path, key: str) -> str:
    """Make our comment with this key say what `file` says, and return what was done in words.

    A forge without comments that can be edited gets one more, unless the last of ours says the same.
    """
    from metainfer.forge.github.forge import GitHubForge

    if not _KEY.fullmatch(key):
        raise InputError(f"{key!r} is no key of a comment")
    try:
        text = read_regular(file, _MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8") from error
    if isinstance(forge, GitHubForge):
        forge.conversation.say(number, key, text)
        return f"#{number} says what {file} says"
    ours = [comment for comment in forge.get(number).comments if comment.by == BOT.label]
    if ours and ours[-1].text.strip() == text.strip():
        return f"#{number} says so already"
    forge.comment(number, BOT, text)
    return f"commented on #{number}"
