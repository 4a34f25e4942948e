"""Who takes part in writing an engine beside the implementer, when, and what of it is kept.

The plan comes first and costs one call. Reviews begin when everything is written, and lessons are drawn last, so that
neither takes budget from a unit. A role that gives no answer is noted as skipped; the engine goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.agents.brief import Brief
from metainfer.agents.budget import Limits
from metainfer.agents.consolidator import case_of, lessons_from
from metainfer.agents.implementer import Judge, Outcome
from metainfer.agents.pausing import together
from metainfer.agents.planner import Plan, Terms, default_plan, make_plan
from metainfer.agents.revision import review_and_mend
from metainfer.agents.structured import Asker
from metainfer.files import pretty_json, write_atomic
from metainfer.forge.markdown import visible
from metainfer.generate.manifest import ObjectionRecord
from metainfer.pipeline.lessons import Sieve
from metainfer.pipeline.proposed import PROPOSAL_NAME

if TYPE_CHECKING:
    from metainfer.generate.inputs import EngineInputs
    from metainfer.progress import Progress
    from metainfer.spec.models import Generation

PLAN_NAME = "plan.json"
LESSONS_NAME = "lessons.json"
"""In a run's folder: per contract what a consolidator's answer came to, with what was dropped and why."""
LEFT = "left to its exemplar by the plan"
_MAX_TEXT = 240


@dataclass(frozen=True)
class Roles:
    """The roles of one run, and what they need."""

    inputs: EngineInputs
    settings: Generation
    asker: Asker
    folder: Path
    progress: Progress

    async def plan(self, contracts: Sequence[str], budget: Limits) -> Plan:
        """The order and effort to write in; kept in the run's folder."""
        known = {contract.id: contract for contract in self.inputs.routing.contracts}
        terms = Terms(
            [known[name] for name in contracts],
            self.settings.rounds,
            self.settings.samples,
            budget,
            self._leavable(contracts),
        )
        if "planner" not in self.settings.roles:
            plan = default_plan(terms, "no planner takes part")
        else:
            self.progress.start("plan")
            plan = await make_plan(terms, self.asker, self.inputs.name)
            self.progress.done("plan", _in_words(plan))
        write_atomic(self.folder / PLAN_NAME, pretty_json(asdict(plan)))
        return plan

    def _leavable(self, contracts: Sequence[str]) -> list[str]:
        """What a plan may leave to exemplars: nothing that has none, and nothing that the spec names."""
        if self.settings.fallback == "none" or self.settings.contracts:
            return []
        return [name for name in contracts if not self.inputs.routing.lacks_exemplar(name)]

    async def review(self, outcomes: Sequence[Outcome], briefs: Mapping[str, Brief], judge: Judge) -> None:
        """Have every file that holds reviewed, and mended where that works."""
        if "reviewer" not in self.settings.roles:
            return

        async def one(outcome: Outcome) -> None:
            step = f"review {outcome.contract}"
            self.progress.start(step)
            await review_and_mend(briefs[outcome.contract], outcome, self.asker, judge, self.settings.temperature)
            self.progress.done(step, _verdict(outcome))

        await together(*(one(outcome) for outcome in outcomes if outcome.code is not None))

    async def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Ask what the failures of this run teach, and keep what may be proposed in the run's folder."""
        if "consolidator" not in self.settings.roles:
            return
        known = {contract.id: contract for contract in self.inputs.routing.contracts}
        cases = {outcome.contract: case for outcome in outcomes if (case := case_of(outcome)) is not None}
        sieve = Sieve(
            self.inputs.ckb_root,
            model=self.asker.model,
            engine=self.inputs.name,
            input_hash=self.inputs.input_hash,
        )
        self.progress.start("learn")
        answers = await together(*(lessons_from(known[name], case, self.asker) for name, case in cases.items()))
        for (name, case), answer in zip(cases.items(), answers, strict=True):
            if answer.value is None:
                sieve.lessons.skipped[name] = answer.skipped
            else:
                await asyncio.to_thread(sieve.take, known[name], case, answer.value.mistakes)
        write_atomic(self.folder / LESSONS_NAME, pretty_json(_lessons(sieve)))
        if proposal := sieve.proposal():
            write_atomic(self.folder / PROPOSAL_NAME, pretty_json(proposal.model_dump(mode="json", by_alias=True)))
        lessons = sieve.lessons
        words = f"{len(lessons.deltas)} proposed, {len(lessons.dropped)} dropped, {len(lessons.skipped)} skipped"
        self.progress.done("learn", words)


def objections_of(outcomes: Sequence[Outcome]) -> tuple[ObjectionRecord, ...]:
    """What stayed open, as a manifest keeps it: short, and nothing in it that people would not see."""
    return tuple(
        ObjectionRecord(
            contract=outcome.contract,
            clause=objection.clause,
            promise=_short(objection.promise),
            line=objection.line,
            why=_short(objection.why),
        )
        for outcome in outcomes
        if outcome.review is not None and outcome.code is not None
        for objection in outcome.review.objections
    )


def unreviewed(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Contracts whose files, as they stand, no reviewer has read although one was to."""
    return tuple(
        outcome.contract
        for outcome in outcomes
        if outcome.review is not None and outcome.review.skipped and not outcome.review.objections
    )


def _lessons(sieve: Sieve) -> dict[str, object]:
    lessons = sieve.lessons
    return {
        "proposed": [delta.model_dump(mode="json") for delta in lessons.deltas],
        "dropped": [asdict(dropped) for dropped in lessons.dropped],
        "skipped": lessons.skipped,
    }


def _in_words(plan: Plan) -> str:
    if not plan.planned:
        return f"the engine's own order ({plan.why[:200]})"
    order = ", ".join(step.contract for step in plan.steps if not step.leave)
    left = ", ".join(step.contract for step in plan.steps if step.leave)
    return order + (f"; left to exemplars: {left}" if left else "")


def _verdict(outcome: Outcome) -> str:
    review = outcome.review
    if review is None:
        return "not reviewed"
    words = [
        f"{len(review.objections)} open" if review.objections else "",
        f"{review.answered} answered" if review.answered else "",
        f"{review.dropped} dropped" if review.dropped else "",
        f"skipped: {review.skipped[:160]}" if review.skipped else "",
    ]
    return ", ".join(word for word in words if word) or "no objection"


def _short(text: str) -> str:
    clean = " ".join(visible(text).split())
    return clean if len(clean) <= _MAX_TEXT else f"{clean[: _MAX_TEXT - 1]}…"
