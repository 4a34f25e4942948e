"""Names of labels on pull requests, the same on every forge."""

from __future__ import annotations

import re

from metainfer.errors import InputError

_LABEL = re.compile(r"[A-Za-z0-9._:/-]{1,50}")


def check_label(name: str) -> str:
    """Return `name` if it can be a label everywhere. Raises InputError: GitHub would take, and make, nearly any."""
    if not _LABEL.fullmatch(name):
        raise InputError(f"{name!r} is no label; write up to 50 letters, digits, and any of . _ : / -")
    return name
