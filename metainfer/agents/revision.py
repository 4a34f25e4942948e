"""After the checks: a reviewer's objections, one repair from them, and code that decides which file stays."""

from __future__ import annotations

from dataclasses import replace

from metainfer.agents.answer import read_answer
from metainfer.agents.brief import Brief, implementer_prompt
from metainfer.agents.budget import BudgetError, Purpose
from metainfer.agents.client import EndpointError
from metainfer.agents.implementer import Attempt, Judge, Outcome
from metainfer.agents.messages import ChatRequest, Message
from metainfer.agents.reviewer import Review, review, still_standing
from metainfer.agents.structured import Asker
from metainfer.agents.templates import render


async def review_and_mend(brief: Brief, outcome: Outcome, asker: Asker, judge: Judge, temperature: float) -> None:
    """Have the file that holds reviewed, once more if it was mended, and note in `outcome` what is open.

    A mended file takes the earlier one's place only if it passes the same judge. Nothing that a model answers, or does
    not, takes a file away that holds.
    """
    held = outcome.held
    if held is None:
        return
    first = outcome.review = await review(brief.contract, held.code, asker)
    if not first.objections:
        return
    mended = await _mend(brief, held, first, asker, judge, temperature)
    if isinstance(mended, str):
        outcome.review = replace(first, skipped=f"not mended: {mended}")
        return
    outcome.attempts.append(mended)
    if not mended.passed or mended.code == held.code:
        return
    second = await review(brief.contract, mended.code, asker, look=1)
    if second.skipped:
        second = replace(second, objections=still_standing(first.objections, mended.code))
    still_open = {objection.clause for objection in second.objections}
    answered = sum(objection.clause not in still_open for objection in first.objections)
    outcome.review = replace(second, answered=answered, dropped=first.dropped + second.dropped)


async def _mend(
    brief: Brief, held: Attempt, found: Review, asker: Asker, judge: Judge, temperature: float
) -> Attempt | str:
    """One repair from the objections; or why there is none."""
    objections = [objection.words for objection in found.objections]
    request = ChatRequest(
        model=asker.model,
        messages=(
            *implementer_prompt(brief),
            Message(role="assistant", content=f"```python\n{held.code.rstrip()}\n```"),
            Message(role="user", content=render("implementer.review.md.j2", objections=objections)),
        ),
        max_tokens=asker.max_tokens,
        temperature=temperature if held.sample else 0.0,
        seed=held.sample,
        sample=held.sample,
    )
    number = held.round + 1  # no other answer of this sample has it: the one before held
    purpose = Purpose(role="implementer", subject=brief.contract.id, round=number)
    try:
        answer = read_answer(await asker.client.ask(request, purpose), brief.contract.units)
    except (BudgetError, EndpointError) as error:
        return str(error)
    if answer.code == held.code:
        return Attempt(held.code, (), number, held.sample)
    findings = answer.complaints or await judge(brief, answer.code)
    return Attempt(answer.code, tuple(findings), number, held.sample)
