"""A contract as clauses that can be cited: the interface, each sentence of the text, invariants, known mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract

_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z`(\"“])")


@dataclass(frozen=True)
class Clause:
    """One thing that a contract says."""

    id: str
    """U for a unit's interface, S for a sentence, I for an invariant, M for a known mistake; numbered from 1."""
    text: str

    @property
    def line(self) -> str:
        """The text in one line."""
        return " ".join(self.text.split())


def clauses(contract: Contract) -> list[Clause]:
    """All clauses, in order. The same contract has the same ones."""
    units = ["\n".join([u.signature.strip(), *(f"{n}: {s}" for n, s in u.shapes.items())]) for u in contract.units]
    mistakes = [f"{m.trigger} -> {m.symptom} Better: {m.fix}" for m in contract.failure_modes]
    kinds = {"U": units, "S": list(_sentences(contract.semantics)), "I": contract.invariants, "M": mistakes}
    return [Clause(f"{kind}{at}", text) for kind, texts in kinds.items() for at, text in enumerate(texts, start=1)]


def _sentences(semantics: str) -> Iterator[str]:
    """Sentences of prose; what is set apart by indentation, such as a formula or list, stays whole."""
    for paragraph in re.split(r"\n\s*\n", semantics.strip("\n")):
        if any(line.startswith((" ", "\t", "-", "*")) for line in paragraph.splitlines()):
            yield paragraph
        else:
            yield from (sentence for sentence in _SENTENCE_ENDS.split(" ".join(paragraph.split())) if sentence)
