"""Which contracts apply to a deployment, which exemplar serves which unit, and what is not covered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from metainfer.ckb.facts import Facts
from metainfer.ckb.models import Contract, Exemplar
from metainfer.ckb.predicates import parse_predicate
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError, RefusedError

_MAX_NAMED = 3


class RoutingError(InputError):
    """Two pieces of knowledge claim the same place; both are named."""


class NotCoveredError(RefusedError):
    """The knowledge base cannot make every unit of the engine; nothing was spent."""


@dataclass(frozen=True)
class Routing:
    """The knowledge of one deployment."""

    contracts: tuple[Contract, ...]
    """Those that apply, by id."""
    by_unit: Mapping[str, Contract]
    exemplars: Mapping[str, Exemplar]
    """Unit name to its exemplar; a unit without one is not in it."""
    passed_over: Mapping[str, Sequence[Contract]] = field(default_factory=dict)
    """Unit name to contracts that describe it too, and are deprecated or for other deployments."""

    def lacks_exemplar(self, contract: str) -> bool:
        """Whether some unit of a contract can only be written."""
        return any(owner.id == contract and unit not in self.exemplars for unit, owner in self.by_unit.items())

    def source_of(self, unit: str) -> tuple[Contract, Exemplar]:
        """The contract and exemplar of a covered unit."""
        return self.by_unit[unit], self.exemplars[unit]


@dataclass(frozen=True)
class Gap:
    """A unit that cannot be made, and why."""

    unit: str
    reason: str


def route(knowledge: KnowledgeBase, facts: Facts) -> Routing:
    """Choose contracts and exemplars. Raises RoutingError where the choice is not unique, or contradicts itself."""
    values = facts.model_dump()
    applying: dict[str, Contract] = {}
    passed_over: defaultdict[str, list[Contract]] = defaultdict(list)
    for _, contract in sorted(knowledge.contracts.items()):
        if contract.deprecated is None and contract.predicate(values):
            applying[contract.id] = contract
            continue
        for unit in contract.units:
            passed_over[unit.name].append(contract)
    _check_relations(knowledge, applying)
    by_unit: dict[str, Contract] = {}
    exemplars: dict[str, Exemplar] = {}
    for contract in applying.values():
        for unit in contract.units:
            if unit.name in by_unit:
                raise RoutingError(
                    f"both {by_unit[unit.name].id} and {contract.id} define {unit.name} for this deployment; "
                    "narrow the applies_when of one"
                )
            by_unit[unit.name] = contract
        for exemplar in contract.exemplars:
            if not parse_predicate(exemplar.applies_when)(values):
                continue
            for name in exemplar.units:
                if name in exemplars:
                    raise RoutingError(
                        f"{contract.id}: both {exemplars[name].path} and {exemplar.path} serve {name} here; "
                        "narrow the applies_when of one"
                    )
                exemplars[name] = exemplar
    return Routing(tuple(applying.values()), by_unit, exemplars, passed_over)


def coverage(routing: Routing, needed: Iterable[str], written: Collection[str] = ()) -> tuple[Gap, ...]:
    """The units among `needed` that the routed knowledge does not serve; empty means covered.

    `written`: ids of contracts whose units are, or will be, written by a model or a person; they need no exemplar.
    """
    gaps = []
    for unit in needed:
        if unit not in routing.by_unit:
            gaps.append(Gap(unit, _why_no_contract(routing.passed_over.get(unit, ()))))
        elif unit not in routing.exemplars and routing.by_unit[unit].id not in written:
            contract = routing.by_unit[unit]
            others = [e for e in contract.exemplars if unit in e.units]
            why = "; ".join(f"{e.path} applies when {e.applies_when}" for e in others[:_MAX_NAMED]) or "it has none"
            gaps.append(Gap(unit, f"{contract.id} has no exemplar for this deployment: {why}"))
    return tuple(gaps)


def _why_no_contract(others: Sequence[Contract]) -> str:
    if not others:
        return "no contract describes it"
    whys = [
        f"{c.id} is deprecated: {c.deprecated}" if c.deprecated else f"{c.id} applies when {c.applies_when}"
        for c in others[:_MAX_NAMED]
    ]
    more = f"; and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
    return f"no contract for this deployment: {'; '.join(whys)}{more}"


def require_coverage(routing: Routing, needed: Iterable[str], written: Collection[str] = ()) -> None:
    """Raise NotCoveredError with the whole list if anything is missing; see `coverage`."""
    if gaps := coverage(routing, needed, written):
        lines = "\n".join(f"  {gap.unit}: {gap.reason}" for gap in gaps)
        raise NotCoveredError(f"the knowledge base does not cover this deployment:\n{lines}")


def _check_relations(knowledge: KnowledgeBase, applying: Mapping[str, Contract]) -> None:
    for contract in applying.values():
        for other in contract.requires:
            if other not in applying:
                deprecated = knowledge.contracts[other].deprecated
                why = f"is deprecated: {deprecated}" if deprecated else "does not apply here"
                raise RoutingError(f"{contract.id} applies and requires {other}, which {why}")
        for other in contract.conflicts:
            if other in applying:
                raise RoutingError(f"{contract.id} and {other} both apply here, but they conflict")
