"""What a change of knowledge takes back: checks that notice less, tolerances that grew, promises that went.

Compares two states of a knowledge base by their text alone; nothing is run. A change that cannot be judged is reported
as one to read, never as harmless: this is a lamp for reviewers, not a proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import yaml
from pydantic import BaseModel

from metainfer.ckb.check_diff import compare_checks
from metainfer.ckb.kinds import LOUD, Kind
from metainfer.ckb.models import ContractFile, Mutant, MutantsFile
from metainfer.ckb.predicates import implies, parse_predicate
from metainfer.ckb.store import CHECK_NAME, CONTRACT_NAME, MUTANTS_NAME
from metainfer.spec.document import Document, DocumentError

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Change:
    """One change in words. `weakens`: less is checked, promised or noticed than before."""

    path: str
    """Relative to the knowledge base."""
    words: str
    weakens: bool = False
    kind: Kind = Kind.REVISED

    @property
    def is_loud(self) -> bool:
        """Whether a reviewer must be shown it before anything else."""
        return self.weakens or self.kind in LOUD


def compare(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[Change]:
    """What differs between two knowledge bases, given as files by path; what weakens comes first."""
    changes: list[Change] = []
    touched: set[str] = set()
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old != new:
            contract = _contract_of(path)
            touched.add(contract)
            changes += _compare_file(path, old, new, is_new=contract not in before)
    for path in sorted(touched):
        changes += _compare_versions(path, before.get(path), after.get(path))
    return sorted(changes, key=lambda change: (not change.weakens, not change.is_loud))


def _contract_of(path: str) -> str:
    """The contract file of the contract that a path belongs to."""
    return "/".join([*path.split("/")[:2], CONTRACT_NAME])


def _compare_versions(path: str, old_data: bytes | None, new_data: bytes | None) -> Iterator[Change]:
    """`path` is the contract file of a contract of which some file changed."""
    if old_data is None or new_data is None:
        return
    old, new = _read(path, old_data, ContractFile), _read(path, new_data, ContractFile)
    if old and new and new.version <= old.version:
        words = f"is changed, but its version {new.version} is not raised"
        yield Change(path, words, kind=Kind.VERSION_NOT_RAISED)


def _compare_file(path: str, old: bytes | None, new: bytes | None, *, is_new: bool) -> Iterator[Change]:
    """`is_new`: the whole contract is; it is told once, its other files are not."""
    name = path.rpartition("/")[2]
    if new is None:
        kinds = {
            CONTRACT_NAME: Kind.CONTRACT_REMOVED,
            CHECK_NAME: Kind.CHECK_REMOVED,
            MUTANTS_NAME: Kind.MUTANT_REMOVED,
        }
        what = "the whole contract" if name == CONTRACT_NAME else "the file"
        yield Change(path, f"{what} is removed", name in kinds, kinds.get(name, Kind.REVISED))
    elif old is None:
        if name == CONTRACT_NAME or not is_new:
            yield Change(path, "is new", kind=Kind.ADDED)
    elif name == CONTRACT_NAME:
        yield from _compare_contracts(path, old, new)
    elif name == CHECK_NAME:
        for change in compare_checks(old.decode("utf-8", "replace"), new.decode("utf-8", "replace")):
            yield Change(path, *change)
    elif name == MUTANTS_NAME:
        yield from _compare_mutants(path, old, new)
    else:
        yield Change(path, "is revised: engines made from it change")


def _compare_contracts(path: str, old_data: bytes, new_data: bytes) -> Iterator[Change]:
    old, new = _read(path, old_data, ContractFile), _read(path, new_data, ContractFile)
    if old is None or new is None:
        yield _unloadable(path)
        return
    for promise in old.invariants:
        if promise not in new.invariants:
            yield Change(path, f"the invariant “{promise}” is gone or reworded", True, Kind.INVARIANT_DROPPED)
    for promise in new.invariants:
        if promise not in old.invariants:
            yield Change(path, f"a new invariant: “{promise}”", kind=Kind.ADDED)
    yield from _compare_failure_modes(path, old, new)
    if old.applies_when != new.applies_when:
        scope = _scope(old.applies_when, new.applies_when)
        # Where a contract no longer applies, nobody runs its check.
        weakens = implies(parse_predicate(old.applies_when), parse_predicate(new.applies_when)) is not None
        kind = Kind.SCOPE_NARROWED if weakens else Kind.REVISED
        yield Change(path, f"applies {scope}: {new.applies_when}", weakens, kind)
    if new.deprecated != old.deprecated:
        words = f"is deprecated: {new.deprecated}" if new.deprecated else "is no longer deprecated"
        yield Change(path, words, bool(new.deprecated), Kind.DEPRECATION)
    if gone := sorted({unit.name for unit in old.units} - {unit.name for unit in new.units}):
        yield Change(path, f"no longer describes {', '.join(gone)}", True, Kind.UNIT_DROPPED)
    for field, verb, kind in (
        ("requires", "requires", Kind.REQUIRES_DROPPED),
        ("conflicts", "conflicts with", Kind.CONFLICT_DROPPED),
    ):
        was, now = getattr(old, field), getattr(new, field)
        if lost := [name for name in was if name not in now]:
            yield Change(path, f"no longer {verb} {', '.join(lost)}", True, kind)
        if more := [name for name in now if name not in was]:
            yield Change(path, f"now {verb} {', '.join(more)}")
    for field in ("title", "units", "semantics", "exemplars", "platform_facts"):
        if getattr(old, field) != getattr(new, field):
            yield Change(path, f"{field} is revised")


def _compare_failure_modes(path: str, old: ContractFile, new: ContractFile) -> Iterator[Change]:
    known, kept = {mode.id: mode for mode in old.failure_modes}, {mode.id: mode for mode in new.failure_modes}
    for name in known.keys() - kept.keys():
        yield Change(path, f"the failure mode {name} is forgotten", True, Kind.FAILURE_MODE_DROPPED)
    for name in kept.keys() - known.keys():
        yield Change(path, f"a new failure mode {name}: {kept[name].symptom}", kind=Kind.ADDED)
    for name in known.keys() & kept.keys():
        if known[name] != kept[name]:
            moved = known[name].caught_by != kept[name].caught_by
            suffix = f"; caught by {kept[name].caught_by}, before by {known[name].caught_by}" if moved else ""
            # A gate looks at whole engines, once; a check looks at this unit, with inputs made for it.
            to_a_gate = known[name].caught_by.startswith("check_") and not kept[name].caught_by.startswith("check_")
            kind = Kind.CHECK_WEAKENED if to_a_gate else Kind.REVISED
            yield Change(path, f"the failure mode {name} is revised{suffix}", to_a_gate, kind)


def _scope(old: str, new: str) -> str:
    before, now = parse_predicate(old), parse_predicate(new)
    narrower, wider = implies(now, before) is None, implies(before, now) is None
    if narrower and wider:
        return "in the same deployments as before"
    return "in fewer deployments" if narrower else "in more deployments" if wider else "in other deployments"


def _compare_mutants(path: str, old_data: bytes, new_data: bytes) -> Iterator[Change]:
    old, new = _mutants(path, old_data), _mutants(path, new_data)
    if old is None or new is None:
        yield _unloadable(path)
        return
    for name in old.keys() - new.keys():
        yield Change(path, f"the mutant {name} is removed: {old[name].why}", True, Kind.MUTANT_REMOVED)
    for name in new.keys() - old.keys():
        yield Change(path, f"a new mutant {name}: {new[name].why}", kind=Kind.ADDED)
    for name in old.keys() & new.keys():
        if old[name] != new[name]:
            words = f"the mutant {name} is another: {new[name].replace!r} becomes {new[name].with_!r}"
            yield Change(path, words, kind=Kind.TO_READ)


def _unloadable(path: str) -> Change:
    return Change(path, "does not load, so nothing can be said about it", True, Kind.UNREADABLE)


def _mutants(path: str, data: bytes) -> dict[str, Mutant] | None:
    file = _read(path, data, MutantsFile)
    return None if file is None else {mutant.name: mutant for mutant in file.root}


def _read(path: str, data: bytes, model: type[_Model]) -> _Model | None:
    try:
        return Document.parse(data.decode("utf-8-sig"), path).validate(model)
    except (DocumentError, UnicodeDecodeError, yaml.YAMLError):
        return None
