"""Does the knowledge base hold together? Problems that one contract's schema cannot show, found without running code.

`metainfer.ckb.mutants` runs the checks themselves.
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metainfer.ckb.facts import fact_domains
from metainfer.ckb.models import Contract, Exemplar
from metainfer.ckb.predicates import Predicate, implies, parse_predicate, satisfiable
from metainfer.ckb.store import CHECK_NAME, KnowledgeBase

MIN_MUTANTS = 3
_GENERATED = frozenset({"__pycache__", "contract.yaml", "mutants.yaml", CHECK_NAME})


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a contract. `kind` is a short name to filter by."""

    contract: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.contract}: {self.message} [{self.kind}]"


def audit(knowledge: KnowledgeBase, needed: Iterable[str] = ()) -> list[Problem]:
    """Every problem of the base, by contract. `needed`: units that an engine is made of; each must have a contract."""
    accepted = [c for _, c in sorted(knowledge.contracts.items()) if c.deprecated is None]
    problems: list[Problem] = []
    for contract in accepted:
        problems += _proof_problems(knowledge, contract)
        problems += _file_problems(knowledge, contract)
        problems += _predicate_problems(contract)
        problems += _requirement_problems(knowledge, contract)
    problems += _overlaps(accepted)
    provided = {unit.name for contract in accepted for unit in contract.units}
    problems += [
        Problem("(none)", "missing-unit", f"engines need {unit}, and no accepted contract describes it")
        for unit in needed
        if unit not in provided
    ]
    return problems


def unproven(knowledge: KnowledgeBase) -> list[str]:
    """Ids of contracts with units and no exemplar: a model or a person has to write them, and nothing shows yet that
    their checks can be met, or notice anything. Allowed, for knowledge has to begin somewhere."""
    return [
        name for name, c in sorted(knowledge.contracts.items()) if c.units and not c.exemplars and c.deprecated is None
    ]


def check_functions(source: str) -> tuple[str, ...]:
    """The names of the checks that a check file defines, without running it."""
    return tuple(
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    )


def _combinations(predicates: Iterable[Predicate]) -> Iterator[dict[str, Any]]:
    """Every combination of values of the facts that the predicates mention; one empty one if they mention none."""
    domains = fact_domains()
    names = sorted(set().union(*(predicate.facts for predicate in predicates)))
    for values in itertools.product(*(domains[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def _proof_problems(knowledge: KnowledgeBase, contract: Contract) -> Iterator[Problem]:
    """Units come with checks, checks with mutants, failure modes with a check that exists."""
    path = knowledge.check_file(contract.id)
    try:
        checks = check_functions(path.read_text("utf-8")) if path.is_file() else ()
    except (SyntaxError, ValueError) as error:
        yield Problem(contract.id, "check", f"{CHECK_NAME} does not parse: {error}")
        return
    if contract.units and not checks:
        yield Problem(contract.id, "check", f"describes units, but {CHECK_NAME} defines no check_* function")
    if contract.units and contract.exemplars and len(contract.mutants) < MIN_MUTANTS:
        yield Problem(contract.id, "mutants", f"has {len(contract.mutants)} mutants; at least {MIN_MUTANTS} are needed")
    for mode in contract.failure_modes:
        if mode.caught_by.startswith("check_") and mode.caught_by not in checks:
            yield Problem(contract.id, "caught-by", f"{mode.id} is caught by {mode.caught_by}, which is not a check")
    served = {path for exemplar in contract.exemplars for path in (exemplar.path, *exemplar.sources)}
    for mutant in contract.mutants:
        if mutant.caught_by is not None and mutant.caught_by not in checks:
            yield Problem(
                contract.id, "caught-by", f"{mutant.name} is caught by {mutant.caught_by}, which is not a check"
            )
        if mutant.file not in served:
            yield Problem(contract.id, "mutants", f"{mutant.name} changes {mutant.file}, which no exemplar uses")


def _file_problems(knowledge: KnowledgeBase, contract: Contract) -> Iterator[Problem]:
    """Files that nothing refers to are knowledge that nobody uses and everybody believes in."""
    folder = knowledge.folder(contract.id)
    used = {path for exemplar in contract.exemplars for path in (exemplar.path, *exemplar.sources)}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in used and not _GENERATED.intersection(path.relative_to(folder).parts):
            yield Problem(contract.id, "unused-file", f"{name}: neither the contract nor an exemplar names it")


def _predicate_problems(contract: Contract) -> Iterator[Problem]:
    """The contract applies somewhere, each exemplar too, and wherever it applies each unit has exactly one exemplar."""
    if satisfiable(contract.predicate) is None:
        yield Problem(contract.id, "unsatisfiable", f"applies_when never holds: {contract.applies_when}")
        return
    exemplars = [(exemplar, parse_predicate(exemplar.applies_when)) for exemplar in contract.exemplars]
    for exemplar, predicate in exemplars:
        if satisfiable(contract.predicate, predicate) is None:
            yield Problem(contract.id, "unsatisfiable", f"{exemplar.path} never applies where the contract does")
    for unit in contract.units if exemplars else ():  # without any, see `unproven`
        yield from _unit_problems(contract, unit.name, [(e, p) for e, p in exemplars if unit.name in e.units])


def _unit_problems(contract: Contract, unit: str, exemplars: list[tuple[Exemplar, Predicate]]) -> Iterator[Problem]:
    bare = doubled = False
    for facts in _combinations([contract.predicate, *(predicate for _, predicate in exemplars)]):
        if not contract.predicate(facts):
            continue
        serving = [exemplar.path for exemplar, predicate in exemplars if predicate(facts)]
        if not serving and not bare:
            bare = True
            yield Problem(contract.id, "uncovered", f"{unit} has no exemplar{_where(facts)}")
        if len(serving) > 1 and not doubled:
            doubled = True
            yield Problem(contract.id, "overlap", f"{unit} is served by {' and '.join(serving)}{_where(facts)}")


def _requirement_problems(knowledge: KnowledgeBase, contract: Contract) -> Iterator[Problem]:
    for name in contract.requires:
        other = knowledge.contracts[name]
        if other.deprecated is not None:
            yield Problem(contract.id, "requires", f"requires {name}, which is deprecated: {other.deprecated}")
        elif (facts := implies(contract.predicate, other.predicate)) is not None:
            yield Problem(contract.id, "requires", f"requires {name}, which does not apply{_where(facts)}")
    for name in contract.conflicts:
        other = knowledge.contracts[name]
        both = satisfiable(contract.predicate, other.predicate)
        if both is not None and other.deprecated is None:
            yield Problem(contract.id, "conflict", f"conflicts with {name}, yet both apply{_where(both)}")


def _overlaps(contracts: Sequence[Contract]) -> Iterator[Problem]:
    """Two contracts for one unit, applying together."""
    by_unit: defaultdict[str, list[Contract]] = defaultdict(list)
    for contract in contracts:
        for unit in contract.units:
            by_unit[unit.name].append(contract)
    for name, claimants in sorted(by_unit.items()):
        for one, other in itertools.combinations(claimants, 2):
            facts = satisfiable(one.predicate, other.predicate)
            if facts is not None:
                yield Problem(one.id, "overlap", f"{other.id} describes {name} too{_where(facts)}")


def _where(facts: Mapping[str, Any]) -> str:
    if not facts:
        return ""
    return " where " + ", ".join(
        f"{name} is {str(value).lower() if isinstance(value, bool) else value}" for name, value in facts.items()
    )
