"""A lesson as a run or a person would propose it, about a contract of the knowledge base at its present version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metainfer.ckb.store import KnowledgeBase

CONTRACT = "general/paged-kv-cache"


def lesson(ckb_root: Path, author: str, **changes: Any) -> dict[str, Any]:
    """A proposal of one failure mode; `changes` are to its delta."""
    delta = {
        "kind": "failure-mode",
        "contract": CONTRACT,
        "version": KnowledgeBase.load(ckb_root).contracts[CONTRACT].version,
        "evidence": [{"summary": "Seen after an abort", "source": "a test", "figures": {"blocks_lost": 3}}],
        "failure_mode": {
            "id": "lost-on-abort",
            "symptom": "Fewer free blocks after each abort.",
            "trigger": "An abort in the middle of a prompt.",
            "caught_by": "check_random_life",
            "fix": "Free what was allocated so far.",
            "source": "a test",
        },
    }
    return {"title": "Aborts", "author": author, "deltas": [{**delta, **changes}]}
