"""`manifest.json`: what an engine was made of and by what; a pure function of the inputs, made before any gate."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metainfer.checkpoint.facts import ModelFacts
from metainfer.errors import InputError
from metainfer.files import pretty_json, read_regular, sha256_file
from metainfer.spec.models import Spec

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


class ObjectionRecord(_Record):
    """What a reviewing model holds against a file that passed every check. It decides nothing; people judge it."""

    contract: str
    clause: str
    promise: str
    """What that clause says, shortened."""
    line: int
    """Of the file in `units/`."""
    why: str


class AgentRecord(_Record):
    """The model that was asked for units, how it was asked, and what that cost; absent when none was asked."""

    settings: dict[str, Any]
    """All that decides what the model is asked: part of the inputs' hash."""
    fell_back: tuple[str, ...] = ()
    """Contracts that the model was to write and could not; their exemplars stand there."""
    left: tuple[str, ...] = ()
    """Contracts that the planning model left to their exemplars."""
    objections: tuple[ObjectionRecord, ...] = ()
    unreviewed: tuple[str, ...] = ()
    """Contracts whose file, as it stands, a reviewer was to read and has not."""
    optimised: tuple[str, ...] = ()
    """Contracts whose units the model wrote anew and measurably faster: figures in evidence.json, at `optimise`."""
    tokens: int
    cost_usd: float

    def without(self, contract: str) -> AgentRecord:
        """The same once a contract's exemplar stands in the place of what the model wrote."""
        return self._replaced({contract}, fell_back=(*self.fell_back, contract))

    def faster(self, contracts: Sequence[str], tokens: int, cost_usd: float) -> AgentRecord:
        """The same once the model's faster files stand there, which no reviewer has read."""
        reviews = self.settings.get("backend") == "agents" and "reviewer" in self.settings.get("roles", ())
        record = self._replaced(
            set(contracts),
            fell_back=tuple(one for one in self.fell_back if one not in contracts),
            left=tuple(one for one in self.left if one not in contracts),
            optimised=tuple(contracts),
            tokens=tokens,
            cost_usd=cost_usd,
        )
        unread = (*record.unreviewed, *contracts) if reviews else record.unreviewed
        return record.model_copy(update={"unreviewed": unread})

    def _replaced(self, contracts: set[str], **changes: Any) -> AgentRecord:
        """With other files for some contracts: what a reviewer said is about files that are gone."""
        changes["objections"] = tuple(one for one in self.objections if one.contract not in contracts)
        changes["unreviewed"] = tuple(one for one in self.unreviewed if one not in contracts)
        return self.model_copy(update=changes)


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
    except ValidationError as error:
        raise _wrong(path, error) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a manifest: {error}") from error


def recorded_spec(engine_dir: Path, manifest: Manifest) -> Spec:
    """The spec that the manifest records. Raises InputError naming the manifest and the key."""
    try:
        return Spec.model_validate(manifest.spec)
    except ValidationError as error:
        raise _wrong(engine_dir / MANIFEST_NAME, error, "spec") from error


def recorded_model(engine_dir: Path, manifest: Manifest) -> ModelFacts:
    """The facts of the model that the manifest records. Raises InputError as above."""
    try:
        return ModelFacts.model_validate(manifest.model.facts)
    except ValidationError as error:
        raise _wrong(engine_dir / MANIFEST_NAME, error, "model", "facts") from error


def _wrong(path: Path, error: ValidationError, *above: str) -> InputError:
    return InputError(
        "\n".join(
            f"{path}: {'.'.join(map(str, (*above, *problem['loc'])))}: {problem['msg'].removeprefix('Value error, ')}"
            for problem in error.errors(include_url=False, include_input=False)
        )
    )


def engine_files(engine_dir: Path) -> tuple[dict[str, Path], list[str]]:
    """The files of an engine's folder by relative path, compiled Python left out; and what there is no file."""
    files: dict[str, Path] = {}
    odd = []
    for path in sorted(engine_dir.rglob("*")):
        relative, mode = path.relative_to(engine_dir), path.lstat().st_mode
        if "__pycache__" in relative.parts[:-1] or stat.S_ISDIR(mode):
            continue
        if stat.S_ISREG(mode):
            files[relative.as_posix()] = path
        else:
            odd.append(relative.as_posix())
    return files, odd


def altered_files(engine_dir: Path, manifest: Manifest) -> list[str]:
    """What differs from the manifest, one line per file; empty when the engine is as generated."""
    found, odd = engine_files(engine_dir)
    extra = found.keys() - manifest.files.keys() - {MANIFEST_NAME, EVIDENCE_NAME}
    complaints = [f"{name}: not a regular file" for name in odd]
    complaints += [f"{name}: not in the manifest" for name in sorted(extra)]
    for name, digest in sorted(manifest.files.items()):
        if name in odd:
            continue
        if name not in found:
            complaints.append(f"{name}: missing")
        elif sha256_file(found[name]) != digest:
            complaints.append(f"{name}: changed after generation")
    return complaints
