"""What a contract folder holds, in types."""

from __future__ import annotations

import ast
import datetime
import re
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, model_validator

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
    if "\\" in path or any(part.startswith(".") or not part for part in path.split("/")):
        raise ValueError("must be a path inside the contract's folder, with forward slashes and no hidden parts")
    return path


def _iso_date(text: str) -> str:
    try:
        if datetime.date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise ValueError("is not a date; write YYYY-MM-DD")


ContractId = Annotated[str, AfterValidator(_contract_id)]
PredicateText = Annotated[str, AfterValidator(_predicate)]
InnerPath = Annotated[str, AfterValidator(_inside)]
IsoDate = Annotated[str, AfterValidator(_iso_date)]
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

    @model_validator(mode="after")
    def _signature_is_the_units(self) -> UnitInterface:
        try:
            tree = ast.parse(self.signature)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"the signature of {self.name} is not Python: {error}") from error
        defined = [n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
        if self.name not in defined:
            raise ValueError(f"the signature of {self.name} defines {', '.join(defined) or 'nothing'}")
        return self


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

    path: Annotated[InnerPath, Field(pattern=r"\.py$")]
    units: Annotated[list[str], Field(min_length=1)]
    applies_when: PredicateText = "true"
    sources: list[Annotated[InnerPath, Field(pattern=r"\.(cpp|h)$")]] = []
    """C++ files that travel with it, whole, into the engine's `csrc/`."""


class PlatformFact(_Model):
    """Something measured about a chip or library; knowledge for people and agents, no input of routing."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$")]
    statement: Words
    figures: dict[str, float | int | str] = {}
    """Name with its unit → value, e.g. `read_gb_s: 17.7`."""
    measured_on: Words
    """The machine and the versions of what was measured."""
    date: IsoDate


class Provenance(_Model):
    """Who brought the knowledge in, when, and where it is from."""

    author: Words
    date: IsoDate
    sources: list[str] = []


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
    platform_facts: list[PlatformFact] = []
    provenance: Provenance

    @property
    def layer(self) -> str:
        return self.id.partition("/")[0]

    @model_validator(mode="after")
    def _names_are_unique(self) -> ContractFile:
        for kind, names in (
            ("unit", [unit.name for unit in self.units]),
            ("failure mode", [mode.id for mode in self.failure_modes]),
            ("exemplar", [exemplar.path for exemplar in self.exemplars]),
            ("required contract", self.requires),
            ("platform fact", [fact.id for fact in self.platform_facts]),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"the {kind} {', '.join(twice)} is listed twice")
        return self

    @model_validator(mode="after")
    def _exemplars_serve_declared_units(self) -> ContractFile:
        declared = {unit.name for unit in self.units}
        for exemplar in self.exemplars:
            if unknown := set(exemplar.units) - declared:
                raise ValueError(f"exemplar {exemplar.path} serves {', '.join(sorted(unknown))}, not among the units")
        return self

    @model_validator(mode="after")
    def _refers_to_lower_layers_and_others(self) -> ContractFile:
        rank = LAYERS.index(self.layer)
        for other in (*self.requires, *self.conflicts):
            if LAYERS.index(other.partition("/")[0]) > rank:
                raise ValueError(f"{other} is in a higher layer than {self.layer}; only lower ones may be named")
            if other == self.id:
                raise ValueError("requires or conflicts with itself")
        if self.platform_facts and self.layer != "platform":
            raise ValueError("platform_facts belong to contracts of the platform layer")
        return self


class Mutant(_Model):
    """A seeded fault in an exemplar, which the contract's check must notice. One entry of `mutants.yaml`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$")]
    file: InnerPath
    replace: Words
    """Text that occurs exactly once in the file."""
    with_: str = Field(alias="with")
    why: Words
    caught_by: Annotated[str, Field(pattern=r"^check_[a-z0-9_]+$")] | None = None
    """The check that must notice it; without one, any may. Naming it spares the others the run."""


class MutantsFile(RootModel[list[Mutant]]):
    """`mutants.yaml`: a list."""

    model_config = ConfigDict(frozen=True, strict=True)

    @model_validator(mode="after")
    def _names_are_unique(self) -> MutantsFile:
        names = [mutant.name for mutant in self.root]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"the mutant {', '.join(twice)} is listed twice")
        return self


class Contract(ContractFile):
    """A contract as the store holds it."""

    digest: str
    """Hex SHA-256 over every file of its folder."""
    mutants: list[Mutant]

    @property
    def predicate(self) -> Predicate:
        return parse_predicate(self.applies_when)
