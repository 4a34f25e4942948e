"""One contract's talk with a model: write, hear what is wrong, write again; then fresh attempts, then the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from metainfer.agents.answer import WRITE_FILE, read_answer, said
from metainfer.agents.brief import Brief, feedback_prompt, implementer_prompt
from metainfer.agents.budget import BudgetError, Purpose
from metainfer.agents.client import AnswerError
from metainfer.agents.messages import ChatRequest, Message
from metainfer.agents.respondent import Respondent
from metainfer.agents.reviewer import Review

Judge = Callable[[Brief, str], Awaitable[Sequence[str]]]
"""Findings about a file of code, empty if it holds; each with the figures of a failing input."""

MAX_FINDINGS = 5
MAX_FINDING_CHARACTERS = 600


@dataclass(frozen=True)
class Effort:
    """How hard to try."""

    rounds: int = 2
    """Repairs after the first answer, each from the findings alone."""
    samples: int = 0
    """Fresh attempts after those, with temperature."""
    temperature: float = 0.7
    max_tokens: int = 4096
    tools: bool = False
    """Offer a tool to hand the file over by; endpoints without tools are asked without."""


@dataclass(frozen=True)
class Attempt:
    """One answer and what was found in it."""

    code: str
    findings: Sequence[str]
    round: int
    sample: int

    @property
    def passed(self) -> bool:
        return bool(self.code) and not self.findings


@dataclass
class Outcome:
    """What became of one contract."""

    contract: str
    attempts: list[Attempt] = field(default_factory=list)
    stopped: str = ""
    """Why no further attempt was made, if not because one passed or all were used."""
    review: Review | None = None
    """What a reviewer found in the file that passed; None if nobody was to look."""

    @property
    def held(self) -> Attempt | None:
        """The attempt that passed; of several, the last one, which mends the one before."""
        return next((attempt for attempt in reversed(self.attempts) if attempt.passed), None)

    @property
    def code(self) -> str | None:
        """The file that passed."""
        return self.held.code if self.held else None


async def implement(brief: Brief, client: Respondent, model: str, judge: Judge, effort: Effort) -> Outcome:
    """Ask until an answer passes, or the effort or its budget is used up.

    A budget that is used up, or an answer that cannot be used, ends the contract in `Outcome.stopped`; every other
    error is raised.
    """
    outcome = Outcome(brief.contract.id)
    try:
        opening = implementer_prompt(brief)
        await converse(brief, opening, client, model, judge, effort, outcome, sample=0, rounds=effort.rounds)
        for sample in range(1, effort.samples + 1):
            if outcome.code is not None:
                break
            await converse(brief, opening, client, model, judge, effort, outcome, sample=sample, rounds=0)
    except (BudgetError, AnswerError) as error:
        outcome.stopped = str(error)
    return outcome


async def converse(
    brief: Brief,
    opening: tuple[Message, ...],
    client: Respondent,
    model: str,
    judge: Judge,
    effort: Effort,
    outcome: Outcome,
    *,
    sample: int,
    rounds: int,
    role: str = "implementer",
) -> None:
    """One conversation. Of earlier rounds only the last answer stays in view: small models have short memories."""
    messages: tuple[Message, ...] = opening
    for number in range(rounds + 1):
        request = ChatRequest(
            model=model,
            messages=messages,
            max_tokens=effort.max_tokens,
            temperature=effort.temperature if sample else 0.0,
            seed=sample,
            sample=sample,
            tools=(WRITE_FILE,) if effort.tools else (),
        )
        purpose = Purpose(role=role, subject=brief.contract.id, round=number)
        reply = await client.ask(request, purpose)
        answer = read_answer(reply, brief.contract.units)
        findings = answer.complaints or await judge(brief, answer.code)
        outcome.attempts.append(Attempt(answer.code, tuple(findings), number, sample))
        if not findings:
            return
        spoken = Message(role="assistant", content=said(reply))
        messages = (*opening, spoken, feedback_prompt(brief, bounded(findings)))


def bounded(findings: Sequence[str]) -> list[str]:
    """The first few findings, each short enough to be read."""
    shown = [
        finding if len(finding) <= MAX_FINDING_CHARACTERS else f"{finding[:MAX_FINDING_CHARACTERS]} …"
        for finding in findings[:MAX_FINDINGS]
    ]
    more = len(findings) - len(shown)
    return [*shown, f"and {more} more"] if more else shown
