"""What a contract folder holds, in types."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from metainfer.ckb.predicates import Predicate, PredicateError, parse_predicate

Layer = Literal["general", "family", "model", "platform", "deployment"]
LAYERS: tuple[str, ...] = get_args(Layer)
"""From low to high; a contract refers only to its own layer and those below."""

_ID = re.compile(r"(general|family|model|platform|deployment)/[a-z0-9]+(?:[-.][a-z0-9]+)*")


def _contract_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise ValueError(f"{text!r} is not a contract id; write layer/lower-case-name, layers are {', '.join(LAYERS)}")
    return text


def _predicate(text: str) -> str:
    try:
        parse_predicate(text)
    except PredicateError as error:
        raise ValueError(str(error)) from error
    return text


def _inside(path: str) -> str:
    if path.startswith("/") or "\\" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError("must be a path inside the contract's folder, with forward slashes")
    return path


ContractId = Annotated[str, AfterValidator(_contract_id)]
PredicateText = Annotated[str, AfterValidator(_predicate)]
InnerPath = Annotated[str, AfterValidator(_inside)]
Words = Annotated[str, Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class UnitInterface(_Model):
    """One function or class that the contract asks for."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]
    signature: Words
    """Python stubs, as a caller sees the unit."""
    shapes: dict[str, str] = {}
    """Argument or `returns` → symbolic shape and dtype, e.g. `[tokens, hidden] fp32`."""


class FailureMode(_Model):
    """A way in which implementations of this contract went wrong, and the check that notices."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$")]
    symptom: Words
    trigger: Words
    caught_by: Annotated[str, Field(pattern=r"^(check_[a-z0-9_]+|static|numerics|serving|benchmark)$")]
    """A function of check.py, or the gate that notices."""
    fix: Words
    source: Words


class Exemplar(_Model):
    """A verified implementation of some of the contract's units."""

    path: InnerPath
    units: Annotated[list[str], Field(min_length=1)]
    applies_when: PredicateText = "true"
    sources: list[InnerPath] = []
    """C++ files that travel with it, whole, into the engine's `csrc/`."""


class Provenance(_Model):
    """Who brought the knowledge in, when, and where it is from."""

    author: Words
    date: str
    sources: list[str] = []

    @model_validator(mode="after")
    def _is_a_date(self) -> Provenance:
        datetime.date.fromisoformat(self.date)
        return self


class ContractFile(_Model):
    """`contract.yaml`."""

    id: ContractId
    version: Annotated[int, Field(ge=1)]
    title: Words
    deprecated: str | None = None
    """Why it should no longer be used, and what takes its place."""
    applies_when: PredicateText
    units: list[UnitInterface] = []
    semantics: Words
    invariants: list[str] = []
    failure_modes: list[FailureMode] = []
    requires: list[ContractId] = []
    conflicts: list[ContractId] = []
    exemplars: list[Exemplar] = []
    provenance: Provenance

    @property
    def layer(self) -> str:
        return self.id.partition("/")[0]

    @model_validator(mode="after")
    def _exemplars_serve_declared_units(self) -> ContractFile:
        declared = {unit.name for unit in self.units}
        for exemplar in self.exemplars:
            if unknown := set(exemplar.units) - declared:
                raise ValueError(f"exemplar {exemplar.path} serves {', '.join(sorted(unknown))}, not among the units")
        rank = LAYERS.index(self.layer)
        for other in (*self.requires, *self.conflicts):
            if LAYERS.index(other.partition("/")[0]) > rank:
                raise ValueError(f"{other} is in a higher layer than {self.layer}; only lower ones may be named")
        return self


class Mutant(_Model):
    """A seeded fault in an exemplar, which the contract's check must notice. One entry of `mutants.yaml`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$")]
    file: InnerPath
    replace: Words
    """Text that occurs exactly once in the file."""
    with_: str = Field(alias="with")
    why: Words


class MutantsFile(_Model):
    """`mutants.yaml`: a list."""

    mutants: list[Mutant]


class Contract(ContractFile):
    """A contract as the store holds it."""

    digest: str
    """Hex SHA-256 over every file of its folder."""
    mutants: list[Mutant]

    @property
    def predicate(self) -> Predicate:
        return parse_predicate(self.applies_when)
