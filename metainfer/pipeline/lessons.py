"""From a consolidator's answers to a proposal of knowledge: new failure modes alone, few, clean, with evidence.

A model can propose nothing else here. No delta that this module makes touches a check, a mutant or a tolerance, and
none takes effect before an owner of the knowledge base has approved it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from metainfer.agents.consolidator import Case, FailedCheck, GivenMistake
from metainfer.agents.hygiene import as_data
from metainfer.agents.leakage import leaks
from metainfer.ckb.deltas import Evidence, NewFailureMode, Proposal
from metainfer.ckb.models import FailureMode
from metainfer.errors import MetainferError

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract

MAX_LESSONS = 3
"""Of one run: each one costs an owner's attention."""
MAX_CHARACTERS = 400
"""Of each text of a failure mode."""
SAME = 0.6
"""Share of the shorter text's words that two mistakes have in common when they are taken for one."""
_WORD = re.compile(r"[a-z0-9]{3,}")
_COMMON = frozenset(
    ["the", "and", "for", "that", "with", "from", "are", "has", "have", "was", "this", "its", "than", "when"]
)
_ABOUT_JUDGING = re.compile(
    r"\bcheck_\w+|\btoleranc|\b[ar]tol\b|\bunit tests?\b|\b(?:the|its|this|contract's) (?:checks?|tests?)\b",
    re.IGNORECASE,
)
_FIGURE = re.compile(r"([A-Za-z][\w./-]{0,39}) (-?\d[\d.]*(?:e[+-]?\d+)?)(?=[,)])", re.IGNORECASE)


@dataclass(frozen=True)
class Dropped:
    """A mistake that was named and is not proposed."""

    contract: str
    trigger: str
    why: str


@dataclass
class Lessons:
    """What a run proposes to know."""

    deltas: list[NewFailureMode] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Contract to why its consolidator gave no answer."""


class Sieve:
    """Takes the mistakes that a model named, and keeps those that may be proposed."""

    def __init__(self, ckb_root: Path, *, model: str, engine: str, input_hash: str) -> None:
        self.ckb_root = ckb_root
        self.lessons = Lessons()
        self._author = f"model {model}, from this run's findings"
        self._source = f"findings of a run of {engine}, inputs {input_hash[:12]}"
        self._model = model

    def take(self, contract: Contract, case: Case, named: Sequence[GivenMistake]) -> None:
        """Sift what was named for one contract."""
        for mistake in named:
            delta = self._delta(contract, case, mistake)
            why = delta if isinstance(delta, str) else self._refusal(contract, delta)
            if why:
                shown = " ".join(as_data(mistake.trigger).split())[:MAX_CHARACTERS]
                self.lessons.dropped.append(Dropped(contract.id, shown, why))
            elif isinstance(delta, NewFailureMode):
                self.lessons.deltas.append(delta)

    def proposal(self) -> Proposal | None:
        """All that was kept as one proposal; None if nothing was."""
        return self._proposal(self.lessons.deltas) if self.lessons.deltas else None

    def _proposal(self, deltas: Sequence[NewFailureMode]) -> Proposal:
        return Proposal(title=f"Mistakes that {self._model} made", author=self._author, deltas=list(deltas))

    def _delta(self, contract: Contract, case: Case, mistake: GivenMistake) -> NewFailureMode | str:
        """The typed change; or why there is none."""
        finding = next((one for one in case.findings if one.id == mistake.finding.strip()), None)
        if finding is None or f"def {finding.check}(" not in self._check_of(contract):
            return "it names no finding of the run"
        taken = {mode.id for mode in contract.failure_modes}
        taken |= {delta.failure_mode.id for delta in self.lessons.deltas if delta.contract == contract.id}
        try:
            return NewFailureMode(
                contract=contract.id,
                version=contract.version,
                evidence=[self._evidence(case, finding)],
                failure_mode=FailureMode(
                    id=_name(mistake.trigger, taken),
                    symptom=_one_line(mistake.symptom),
                    trigger=_one_line(mistake.trigger),
                    caught_by=finding.check,
                    fix=_one_line(mistake.fix),
                    source=f"Written by {self._author}: {self._source}.",
                ),
            )
        except ValidationError as error:
            return f"it is no failure mode: {error.errors(include_url=False, include_input=False)[0]['msg']}"

    def _evidence(self, case: Case, finding: FailedCheck) -> Evidence:
        figures: dict[str, float | int | str] = {"attempts": case.attempts, "attempts_failed": case.failed}
        figures |= {name: float(value) for name, value in _FIGURE.findall(finding.text) if _is_number(value)}
        summary = " ".join(as_data(finding.text).split())
        ending = "a later file passed" if case.mended else "no file passed"
        return Evidence(summary=f"{summary}; {ending}", source=f"{self._author}: {self._source}", figures=figures)

    def _refusal(self, contract: Contract, delta: NewFailureMode) -> str:
        """Why a failure mode is not proposed; empty if it may be."""
        mode = delta.failure_mode
        texts = (mode.trigger, mode.symptom, mode.fix)
        if any(as_data(text) != text for text in texts):
            return "it holds text that people would not see, or tags"
        if any(len(text) > MAX_CHARACTERS for text in texts):
            return f"it has a text of more than {MAX_CHARACTERS} characters"
        if any(_ABOUT_JUDGING.search(text) for text in texts):
            return "it speaks of checks or tolerances, which no failure mode changes"
        earlier = [other.failure_mode for other in self.lessons.deltas if other.contract == contract.id]
        told = [contract.semantics, *contract.invariants, *map(_mistake, contract.failure_modes)]
        if any(leaks(text, self._check_of(contract), told) for text in texts):
            return "it holds code of a check"
        for known in (*contract.failure_modes, *earlier):
            if similarity(_mistake(mode), _mistake(known)) >= SAME:
                return f"it says what {known.id} says"
        if len(self.lessons.deltas) >= MAX_LESSONS:
            return f"{MAX_LESSONS} are proposed already"
        return self._misfit(delta)

    def _check_of(self, contract: Contract) -> str:
        from metainfer.ckb.store import CHECK_NAME

        return (self.ckb_root / contract.id / CHECK_NAME).read_text("utf-8")

    def _misfit(self, delta: NewFailureMode) -> str:
        """Why the base would not take it beside the others."""
        from metainfer.ckb.proposals import edits

        try:
            edits(self.ckb_root, self._proposal([*self.lessons.deltas, delta]))
        except MetainferError as error:
            return f"the base does not take it: {str(error)[:300]}"
        return ""


def similarity(one: str, other: str) -> float:
    """How much of the shorter text's words stand in the other, 0 to 1. Words: lower case, at least three letters or
    digits, without articles and the like.

    >>> similarity("eps is left out of the root", "the root lacks eps: eps is left out")
    1.0
    """
    words, others = ({w for w in _WORD.findall(text.lower()) if w not in _COMMON} for text in (one, other))
    shorter = min(len(words), len(others))
    return len(words & others) / shorter if shorter else 0.0


def _mistake(mode: FailureMode) -> str:
    return f"{mode.trigger} {mode.fix}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _name(trigger: str, taken: Iterable[str]) -> str:
    """An id from the first words of what goes wrong, and a number if there is one of that name."""
    words = [word for word in _WORD.findall(trigger.lower()) if word not in _COMMON][:4] or ["mistake"]
    name = "-".join(words)[:48].rstrip("-")
    number = next(n for n in range(1, 1000) if (name if n == 1 else f"{name}-{n}") not in taken)
    return name if number == 1 else f"{name}-{number}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
