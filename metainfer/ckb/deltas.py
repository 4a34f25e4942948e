"""What a proposal is made of: typed changes of knowledge, each with its evidence."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from metainfer.ckb.models import (
    ContractFile,
    ContractId,
    Exemplar,
    FailureMode,
    InnerPath,
    Mutant,
    PlatformFact,
    Words,
)
from metainfer.ckb.store import CONTRACT_NAME


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Evidence(_Model):
    """What supports a delta: measured, or read somewhere that can be named."""

    summary: Words
    source: Words
    """An engine and its run, a paper, a report: where a reviewer can look."""
    figures: dict[str, float | int | str] = {}


class _Delta(_Model):
    evidence: Annotated[list[Evidence], Field(min_length=1)]


class Revision(_Delta):
    """A change of one contract that exists."""

    contract: ContractId
    version: Annotated[int, Field(ge=1)]
    """The contract's version that this was written for; applying it to another one is refused."""


class NewContract(_Delta):
    """A contract that does not exist yet, with everything that belongs to it."""

    kind: Literal["new-contract"] = "new-contract"
    definition: ContractFile
    check: str = ""
    mutants: list[Mutant] = []
    files: dict[InnerPath, str] = {}
    """Exemplars and their sources."""


class NewExemplar(Revision):
    """One more verified implementation of a contract's units."""

    kind: Literal["new-exemplar"] = "new-exemplar"
    exemplar: Exemplar
    files: dict[InnerPath, str]
    mutants: list[Mutant] = []


RevisableField = Literal[
    "title", "applies_when", "units", "semantics", "invariants", "failure_modes", "requires", "conflicts"
]


class RevisedField(Revision):
    """Another value of one field of `contract.yaml`."""

    kind: Literal["revised-field"] = "revised-field"
    field: Literal[
        "title", "applies_when", "units", "semantics", "invariants", "failure_modes", "requires", "conflicts"
    ]
    value: Any


class RevisedFile(Revision):
    """Another text of a contract's check, mutants or exemplar."""

    kind: Literal["revised-file"] = "revised-file"
    path: InnerPath
    text: Words

    @field_validator("path")
    @classmethod
    def _is_not_the_contract(cls, path: str) -> str:
        if path == CONTRACT_NAME:
            raise ValueError(f"{CONTRACT_NAME} is changed field by field; use revised-field")
        return path


class NewFailureMode(Revision):
    """A way to go wrong that somebody met; the check that notices it, and a mutant that proves so, may come with it."""

    kind: Literal["failure-mode"] = "failure-mode"
    failure_mode: FailureMode
    mutants: list[Mutant] = []


class NewPlatformFact(Revision):
    """Something measured about a chip or library."""

    kind: Literal["platform-fact"] = "platform-fact"
    fact: PlatformFact


class Deprecation(Revision):
    """The contract should no longer be used."""

    kind: Literal["deprecation"] = "deprecation"
    reason: Words


Delta = Annotated[
    NewContract | NewExemplar | RevisedField | RevisedFile | NewFailureMode | NewPlatformFact | Deprecation,
    Field(discriminator="kind"),
]


class Proposal(_Model):
    """What travels in a pull request as its own commit."""

    title: Words
    author: Words
    deltas: Annotated[list[Delta], Field(min_length=1)]
