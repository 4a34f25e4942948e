"""One contract's talk with a model about speed: faster variants of a file that holds, each judged as any answer is."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from metainfer.agents.brief import Brief, optimiser_prompt
from metainfer.agents.budget import BudgetError
from metainfer.agents.client import AnswerError
from metainfer.agents.implementer import Attempt, Effort, Judge, Outcome, converse
from metainfer.agents.respondent import Respondent

OPTIMISER = "optimiser"
"""The role of these calls in ledgers and transcripts."""


async def find_variants(
    brief: Brief, present: str, figures: Sequence[str], client: Respondent, model: str, judge: Judge, effort: Effort
) -> Outcome:
    """Ask once with repairs, then for every fresh sample; unlike an implementer, go on after one that holds.

    `present`: the code that the units have now, `figures`: what a profile says of them. Ends as `implement` does.
    """
    outcome = Outcome(brief.contract.id)
    opening = optimiser_prompt(brief, present, figures)

    async def unlike(brief: Brief, code: str) -> Sequence[str]:
        if _same(code, present):
            return ["this is the file that the engine has already; write one that takes less time"]
        return await judge(brief, code)

    try:
        for sample in range(effort.samples + 1):
            rounds = 0 if sample else effort.rounds
            await converse(
                brief, opening, client, model, unlike, effort, outcome, sample=sample, rounds=rounds, role=OPTIMISER
            )
    except (BudgetError, AnswerError) as error:
        outcome.stopped = str(error)
    return outcome


def variants_of(outcome: Outcome) -> list[Attempt]:
    """The attempts that hold, in the order made; of those with the same code the first."""
    found: list[Attempt] = []
    for attempt in outcome.attempts:
        if attempt.passed and not any(_same(attempt.code, other.code) for other in found):
            found.append(attempt)
    return found


def _same(code: str, other: str) -> bool:
    """Whether two files differ in layout and comments at most."""
    try:
        return ast.dump(ast.parse(code)) == ast.dump(ast.parse(other))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code == other
