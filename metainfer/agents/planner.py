"""The planner: in which order contracts are written, and how much effort each is worth. It decides nothing else.

It sees no text of a contract and no code. Code holds its plan against what may be planned, and goes by the plan that
nobody made if it does not fit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.agents.budget import Limits, Purpose
from metainfer.agents.messages import Message
from metainfer.agents.structured import AnswerModel, Asker, ask_for
from metainfer.agents.templates import render

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract

_MAX_WHY = 300


class PlannedContract(AnswerModel):
    """One contract of a plan."""

    id: str
    rounds: int
    samples: int
    leave: bool


class PlanAnswer(AnswerModel):
    """What the planner answers: every contract once, in order."""

    contracts: list[PlannedContract]
    why: str


@dataclass(frozen=True)
class Step:
    """How one contract is written."""

    contract: str
    rounds: int
    samples: int
    leave: bool = False
    """Its exemplar stands there, and the model is not asked."""


@dataclass(frozen=True)
class Plan:
    """Every contract that is to be written, in the order in which it is asked for."""

    steps: tuple[Step, ...]
    planned: bool = False
    """By the planner; else in the engine's own order and with the spec's effort."""
    why: str = ""
    """The planner's reason; or why there is no plan of its own."""


@dataclass(frozen=True)
class Terms:
    """What may be planned."""

    contracts: Sequence[Contract]
    """Those that are to be written, in the engine's order."""
    rounds: int
    samples: int
    budget: Limits
    leavable: Collection[str] = ()
    """Contracts whose exemplars may stand there without the model being asked."""

    @property
    def ids(self) -> list[str]:
        return [contract.id for contract in self.contracts]


def default_plan(terms: Terms, why: str = "") -> Plan:
    """The engine's order, and for each contract what the spec allows."""
    return Plan(tuple(Step(name, terms.rounds, terms.samples) for name in terms.ids), why=why)


def planner_prompt(terms: Terms) -> tuple[Message, ...]:
    """The planner's conversation."""
    words = {c.id: len(f"{c.semantics} {' '.join(c.invariants)}".split()) for c in terms.contracts}
    return (
        Message(role="system", content=render("planner.system.md.j2")),
        Message(role="user", content=render("planner.task.md.j2", terms=terms, words=words)),
    )


async def make_plan(terms: Terms, asker: Asker, engine: str) -> Plan:
    """The planner's plan as far as it holds; the default one where the planner gives none that does."""
    if len(terms.contracts) < 2:
        return default_plan(terms, "one contract needs no plan")
    purpose = Purpose(role="planner", subject=engine)
    answer = await ask_for(PlanAnswer, asker, planner_prompt(terms), purpose, lambda plan: complaint(plan, terms))
    if answer.value is None:
        return default_plan(terms, answer.skipped)
    given = {one.id: one for one in answer.value.contracts}
    steps = tuple(
        Step(
            name,
            rounds=min(max(given[name].rounds, 0), terms.rounds),
            samples=min(max(given[name].samples, 0), terms.samples),
            leave=given[name].leave and name in terms.leavable,
        )
        for name in _required_first(list(given), terms)
    )
    return Plan(steps, planned=True, why=" ".join(answer.value.why.split())[:_MAX_WHY])


def complaint(plan: PlanAnswer, terms: Terms) -> str:
    """Why a plan does not hold, empty if it does: every contract stands in it once, and one is left to be written."""
    names, wanted = [one.id for one in plan.contracts], terms.ids
    found = [
        ("leaves out", [name for name in wanted if name not in names]),
        ("names what is not to be written:", [name[:80] for name in dict.fromkeys(names) if name not in wanted][:5]),
        ("names more than once:", sorted({name for name in wanted if names.count(name) > 1})),
    ]
    lines = [f"the plan {words} {', '.join(those)}" for words, those in found if those]
    if not lines and all(one.leave and one.id in terms.leavable for one in plan.contracts):
        lines = ["the plan leaves every contract to its exemplar, and nothing is written"]
    return "; ".join(lines)


def _required_first(order: Sequence[str], terms: Terms) -> list[str]:
    """The same order, but what a contract requires comes before it; of a circle, the first one stays first."""
    requires: Mapping[str, Sequence[str]] = {contract.id: contract.requires for contract in terms.contracts}
    placed: dict[str, None] = {}
    seen: set[str] = set()

    def place(name: str) -> None:
        if name in seen or name not in requires:
            return
        seen.add(name)
        for other in sorted(requires[name], key=lambda other: order.index(other) if other in order else -1):
            place(other)
        placed[name] = None

    for name in order:
        place(name)
    return list(placed)
