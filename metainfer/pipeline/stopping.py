"""The kill switch that everybody sees: a label on the engine's open pull request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from metainfer.forge.protocol import STOP_LABEL

if TYPE_CHECKING:
    from metainfer.forge.protocol import Forge

FRESH_S = 5.0
"""For so long an answer of the forge is believed: a model call takes longer, and a forge has rate limits."""


def stop_label_watch(
    forge: Forge, engine: str, *, fresh_s: float = FRESH_S, clock: Callable[[], float] = time.monotonic
) -> Callable[[], str]:
    """A function that tells why no model may be asked for an engine; empty while none of its pull requests says so."""
    looked: list[tuple[float, str]] = []

    def halted() -> str:
        if not looked or clock() - looked[-1][0] >= fresh_s:
            pull = forge.find_open(engine)
            why = ""
            if pull is not None and STOP_LABEL in pull.labels:
                why = f"pull request #{pull.number} bears the label {STOP_LABEL}; take it off to go on"
            looked[:] = [(clock(), why)]
        return looked[-1][1]

    return halted
