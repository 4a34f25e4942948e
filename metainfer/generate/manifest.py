"""`manifest.json`: what an engine was made of and by what; a pure function of the inputs, made before any gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metainfer.errors import InputError
from metainfer.files import pretty_json, read_regular, sha256_file

MANIFEST_NAME = "manifest.json"
EVIDENCE_NAME = "evidence.json"
Backend = Literal["specializer", "agents", "override", "submitted"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Generator(_Record):
    """The program that assembled the engine, and the exactly pinned tools that shape its output."""

    version: str
    tools: dict[str, str]


class ModelRecord(_Record):
    """The model folder that the engine accepts, and what was read from it."""

    digest: str
    source: dict[str, Any]
    licence: str
    facts: dict[str, Any]


class ContractRecord(_Record):
    """One routed contract; `digest` covers its text, check, mutants and exemplars."""

    id: str
    version: int
    digest: str


class UnitRecord(_Record):
    """One unit: where it stands, which contract it answers to, and what made it."""

    name: str
    module: str
    contract: str
    contract_version: int
    backend: Backend
    origin: str
    """What the unit was made from: `ckb/…`, relative to the repository, or `units/…`, relative to the engine."""


class AgentRecord(_Record):
    """The model that wrote units, how it was asked, and what that cost; absent when no model wrote anything."""

    settings: dict[str, Any]
    """All that decides what the model is asked: part of the inputs' hash."""
    fell_back: tuple[str, ...] = ()
    """Contracts that the model was to write and could not; their exemplars stand there."""
    tokens: int
    cost_usd: float


class Manifest(_Record):
    """The engine's birth certificate."""

    schema_: Literal["metainfer/manifest/v1"] = Field("metainfer/manifest/v1", alias="schema")
    engine: str
    package: str
    input_hash: str
    generator: Generator
    spec: dict[str, Any]
    spec_path: str
    model: ModelRecord
    facts: dict[str, Any]
    contracts: tuple[ContractRecord, ...]
    units: tuple[UnitRecord, ...]
    agent: AgentRecord | None = None
    dependencies: tuple[str, ...]
    lines: int
    """Lines of Python and C++ in the package, blank ones and comments included."""
    code_lines: int
    """Those with code on them: no blank lines, comments or docstrings."""
    files: dict[str, str]
    """Relative path to hex SHA-256, for every file but the manifest and the evidence."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    def encode(self) -> bytes:
        return pretty_json(self.model_dump(mode="json", by_alias=True))


def read_manifest(engine_dir: Path) -> Manifest:
    """Load and validate an engine's manifest. Raises InputError naming the file and the key."""
    path = engine_dir / MANIFEST_NAME
    try:
        return Manifest.model_validate(json.loads(read_regular(path)))
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; {engine_dir} is not a generated engine") from error
    except (ValueError, ValidationError) as error:
        raise InputError(f"{path}: not a manifest: {error}") from error


def altered_files(engine_dir: Path, manifest: Manifest) -> list[str]:
    """What differs from the manifest, one line per file; empty when the engine is as generated."""
    found = {
        path.relative_to(engine_dir).as_posix()
        for path in engine_dir.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } - {MANIFEST_NAME, EVIDENCE_NAME}
    complaints = [f"{name}: not in the manifest" for name in sorted(found - set(manifest.files))]
    for name, digest in sorted(manifest.files.items()):
        if name not in found:
            complaints.append(f"{name}: missing")
        elif sha256_file(engine_dir / name) != digest:
            complaints.append(f"{name}: changed after generation")
    return complaints
