"""What a reviewing model holds against units that a model wrote, as a table. Every word of it is untrusted text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metainfer.forge.markdown import inline, table

OBJECTIONS = """### Objections of the reviewer

A language model read each written file against its contract, and nothing else. These objections are open. They decide
nothing: what the gates found stands above, and you judge the rest. Lines are those of the files in `units/`."""


def objections_table(objections: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of the table, from the records of a manifest."""
    rows = [
        [
            inline(one.get("contract", "?"), 80),
            inline(one.get("line", "?"), 12),
            f"{inline(one.get('clause', '?'), 12)}: {inline(one.get('promise', ''))}",
            inline(one.get("why", "")),
        ]
        for one in objections
    ]
    return table(["contract", "line", "clause", "why"], rows)
