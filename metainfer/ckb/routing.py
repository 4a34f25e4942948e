"""Which contracts apply to a deployment, which exemplar serves which unit, and what is not covered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metainfer.ckb.facts import Facts
from metainfer.ckb.models import Contract, Exemplar
from metainfer.ckb.predicates import parse_predicate
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError, RefusedError


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
    applying = {
        contract.id: contract
        for contract in sorted(knowledge.contracts.values(), key=lambda c: c.id)
        if contract.deprecated is None and parse_predicate(contract.applies_when)(values)
    }
    _check_relations(applying)
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
    return Routing(tuple(applying.values()), by_unit, exemplars)


def coverage(routing: Routing, needed: Iterable[str]) -> tuple[Gap, ...]:
    """The units among `needed` that the routed knowledge does not serve; empty means covered."""
    gaps = []
    for unit in needed:
        if unit not in routing.by_unit:
            gaps.append(Gap(unit, "no accepted contract applies"))
        elif unit not in routing.exemplars:
            gaps.append(Gap(unit, f"{routing.by_unit[unit].id} has no exemplar that applies"))
    return tuple(gaps)


def require_coverage(routing: Routing, needed: Iterable[str]) -> None:
    """Raise NotCoveredError with the whole list if anything is missing."""
    if gaps := coverage(routing, needed):
        lines = "\n".join(f"  {gap.unit}: {gap.reason}" for gap in gaps)
        raise NotCoveredError(f"the knowledge base does not cover this deployment:\n{lines}")


def _check_relations(applying: Mapping[str, Contract]) -> None:
    for contract in applying.values():
        for other in contract.requires:
            if other not in applying:
                raise RoutingError(f"{contract.id} applies and requires {other}, which does not apply here")
        for other in contract.conflicts:
            if other in applying:
                raise RoutingError(f"{contract.id} and {other} both apply here, but they conflict")
