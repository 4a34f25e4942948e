"""The reviewer: reads a file against its contract, with nothing else in view, and cites the clause that a line breaks.

What it says decides nothing. Code drops objections that cite what is not there; the others go to the implementer, and
what stays open is told to people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from metainfer.agents.budget import Purpose
from metainfer.agents.clauses import Clause, clauses
from metainfer.agents.hygiene import as_code, as_data
from metainfer.agents.messages import Message
from metainfer.agents.structured import AnswerModel, Asker, ask_for
from metainfer.agents.templates import render

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract

MAX_OBJECTIONS = 5
"""Of one file; a reviewer that has more to say repeats itself."""
MAX_WHY = 400
_MAX_QUOTE = 200


class GivenObjection(AnswerModel):
    """One line that breaks one clause."""

    clause: str
    line: int
    quote: str
    why: str


class ReviewAnswer(AnswerModel):
    """What the reviewer answers; an empty list is a file that holds."""

    objections: list[GivenObjection]


@dataclass(frozen=True)
class Objection:
    """An objection whose clause exists and whose quote stands on its line."""

    clause: str
    promise: str
    """What the clause says, in one line."""
    line: int
    """Of the file as it was written."""
    quote: str
    why: str

    @property
    def words(self) -> str:
        """As the implementer hears it."""
        return f"line {self.line}, `{self.quote}`: {self.why} (it is to keep {self.clause}: {self.promise})"


@dataclass(frozen=True)
class Review:
    """What the reviewer found in a file."""

    objections: tuple[Objection, ...] = ()
    """Those that are open."""
    answered: int = 0
    """Objections to an earlier file that are gone from this one."""
    dropped: int = 0
    """Objections that cited a clause or line that is not there, or were one too many."""
    skipped: str = ""
    """Why there is no review, or no second one of what was mended."""


def reviewer_prompt(contract: Contract, code: str) -> tuple[Message, ...]:
    """The reviewer's conversation."""
    values = {"contract": contract, "clauses": clauses(contract), "lines": code.rstrip("\n").split("\n")}
    return (
        Message(role="system", content=render("reviewer.system.md.j2")),
        Message(role="user", content=render("reviewer.task.md.j2", **values)),
    )


async def review(contract: Contract, code: str, asker: Asker, *, look: int = 0) -> Review:
    """Have a file read. `look`: 0 for the first time, 1 for what was mended."""
    purpose = Purpose(role="reviewer", subject=contract.id, round=2 * look)
    answer = await ask_for(ReviewAnswer, asker, reviewer_prompt(contract, code), purpose)
    if answer.value is None:
        return Review(skipped=answer.skipped)
    return sifted(answer.value.objections, clauses(contract), code)


def sifted(given: Sequence[GivenObjection], cited: Sequence[Clause], code: str) -> Review:
    """The objections that can be looked up, each once and bounded; the others are counted."""
    known = {clause.id: clause for clause in cited}
    lines = code.split("\n")
    kept: dict[tuple[str, int], Objection] = {}
    for one in given:
        clause, quote = known.get(one.clause.strip()), " ".join(one.quote.split())
        is_there = 1 <= one.line <= len(lines) and bool(quote) and quote in _squeezed(lines[one.line - 1])
        why = " ".join(as_data(one.why).split())
        if clause is not None and is_there and why and len(kept) < MAX_OBJECTIONS:
            objection = Objection(clause.id, clause.line, one.line, quote[:_MAX_QUOTE], why[:MAX_WHY])
            kept.setdefault((clause.id, one.line), objection)
    return Review(tuple(kept.values()), dropped=len(given) - len(kept))


def still_standing(objections: Sequence[Objection], code: str) -> tuple[Objection, ...]:
    """Objections whose quote stands in a later file too, at the line where it first stands there."""
    lines = [_squeezed(line) for line in code.split("\n")]
    places = [(one, next((n for n, line in enumerate(lines, 1) if one.quote in line), None)) for one in objections]
    return tuple(replace(one, line=line) for one, line in places if line is not None)


def _squeezed(line: str) -> str:
    """A line as the reviewer saw it, each blank once."""
    return " ".join(as_code(line).split())
