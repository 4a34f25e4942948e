"""The consolidator: from what failed and what mended it to mistakes worth knowing, in the words of failure modes.

It sees the contract, findings, and how its own model's code changed; no check and no exemplar. What it answers becomes
a proposal only through code, and knowledge only through an owner of the knowledge base.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.agents.budget import Purpose
from metainfer.agents.implementer import MAX_FINDING_CHARACTERS, MAX_FINDINGS, Attempt, Outcome
from metainfer.agents.messages import Message
from metainfer.agents.structured import AnswerModel, Asker, Structured, ask_for
from metainfer.agents.templates import render

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract

_CHECK = re.compile(r"\b(check_[a-z0-9_]+)\b")
_MAX_DIFFERENCE = 8000
"""Characters; what a diff says beyond that is no small mistake."""


class GivenMistake(AnswerModel):
    """One mistake, tied to a finding."""

    finding: str
    trigger: str
    symptom: str
    fix: str


class LessonsAnswer(AnswerModel):
    """What the consolidator answers; an empty list where nothing is worth keeping."""

    mistakes: list[GivenMistake]


@dataclass(frozen=True)
class FailedCheck:
    """One finding of a check, as the implementer heard it."""

    id: str
    """F1, F2, …: how an answer names it."""
    check: str
    text: str


@dataclass(frozen=True)
class Case:
    """One contract whose writing went wrong in a way that a check noticed."""

    findings: tuple[FailedCheck, ...]
    difference: str
    """From the file that failed to the one that passed, as a unified diff; the file that failed if none passed."""
    attempts: int
    failed: int
    """Attempts in which a check found something."""
    mended: bool


def case_of(outcome: Outcome) -> Case | None:
    """What there is to learn from a contract: a failure that was mended, or one that came again. None for neither."""
    held_at = next((at for at, attempt in enumerate(outcome.attempts) if attempt.passed), None)
    held = None if held_at is None else outcome.attempts[held_at]
    failures = [attempt for attempt in outcome.attempts[:held_at] if _checks(attempt)]
    if held is not None:
        wanted = {check for attempt in failures[-1:] for check in _checks(attempt)}
    else:
        seen = [check for attempt in failures for check in _checks(attempt)]
        wanted = {check for check in seen if seen.count(check) > 1}
    last = next((attempt for attempt in reversed(failures) if wanted & _checks(attempt)), None)
    if last is None:
        return None
    texts = [text for text in last.findings if wanted & set(_CHECK.findall(text))][:MAX_FINDINGS]
    findings = tuple(
        FailedCheck(f"F{number}", _CHECK.findall(text)[0], text[:MAX_FINDING_CHARACTERS])
        for number, text in enumerate(texts, start=1)
    )
    shown = _difference(last.code, held.code) if held else last.code
    return Case(findings, shown[:_MAX_DIFFERENCE], len(outcome.attempts), len(failures), held is not None)


def consolidator_prompt(contract: Contract, case: Case) -> tuple[Message, ...]:
    """The consolidator's conversation."""
    return (
        Message(role="system", content=render("consolidator.system.md.j2")),
        Message(role="user", content=render("consolidator.task.md.j2", contract=contract, case=case)),
    )


async def lessons_from(contract: Contract, case: Case, asker: Asker) -> Structured[LessonsAnswer]:
    """The mistakes that the consolidator names for one contract, as it names them."""
    purpose = Purpose(role="consolidator", subject=contract.id)
    return await ask_for(LessonsAnswer, asker, consolidator_prompt(contract, case), purpose)


def _checks(attempt: Attempt) -> set[str]:
    return {check for finding in attempt.findings for check in _CHECK.findall(finding)[:1]}


def _difference(before: str, after: str) -> str:
    lines: Sequence[str] = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3))
    return "\n".join(line for line in lines if not line.startswith(("--- ", "+++ ")))
