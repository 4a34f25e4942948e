"""Prompts as they were reviewed, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from metainfer.agents.messages import Message


def require_reviewed(name: str, messages: Sequence[Message]) -> None:
    """Compare a prompt with the kept one. A new one is written down, and fails once, to be reviewed."""
    kept = Path(__file__).parent / "prompts" / f"{name}.txt"
    text = "\n\n".join(f"## {message.role}\n\n{message.content}" for message in messages) + "\n"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(text, encoding="utf-8")
        pytest.fail(f"{kept} is new: review it and keep it")
    assert text == kept.read_text(encoding="utf-8"), (
        "the prompts changed: raise PROMPT_VERSION, delete the file, run again and review what is written"
    )
