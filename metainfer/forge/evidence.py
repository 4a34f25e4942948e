"""Does an engine's folder hold together? Manifest, evidence and files must speak of one tree, and every gate be green.

Read from Git, before a merge and before a tag. The evidence comes from a job that ran generated code, so nothing in
it is believed beyond its shape: a gate that is missing, red, or listed twice with different verdicts is not green.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metainfer.files import sha256_bytes

MANIFEST = "manifest.json"
EVIDENCE = "evidence.json"
REQUIRED_GATES = ("spec", "static", "unit", "numerics", "serving")
"""Without a passed report from each of these, nothing is merged or tagged. A skipped gate has no report."""


class _View(BaseModel):
    """Only what is judged here; other fields are their owners' business, and may come from a newer version."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


View = TypeVar("View", bound=_View)


class ModelView(_View):
    digest: str


class ManifestView(_View):
    engine: str
    package: str
    input_hash: str
    model: ModelView
    files: dict[str, str]


class GateView(_View):
    gate: str
    verdict: str


class EvidenceView(_View):
    input_hash: str
    gates: list[GateView] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class EngineTree:
    """An engine's files by path within its folder, and the two records read from them (None: absent or unreadable)."""

    files: Mapping[str, bytes]
    manifest: ManifestView | None
    evidence: EvidenceView | None
    problems: tuple[str, ...]
    """Everything that stands between this tree and a merge or a tag; empty when it is sound and green."""

    def record(self, name: str) -> dict[str, Any]:
        """A record as plain data, for display and comparison; empty if it is not there or not an object."""
        try:
            data = json.loads(self.files.get(name, b"{}"))
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}


def examine(engine: str, files: Mapping[str, bytes], input_hash: str | None = None) -> EngineTree:
    """Judge an engine's folder. `files` by path within it; `input_hash`: the inputs it is said to come from."""
    problems: list[str] = []
    manifest = _read(ManifestView, files, MANIFEST, problems)
    evidence = _read(EvidenceView, files, EVIDENCE, problems)
    if manifest:
        problems += _manifest_problems(engine, manifest, files, input_hash)
    if evidence:
        problems += _gate_problems(evidence)
        if manifest and evidence.input_hash != manifest.input_hash:
            problems.append(
                f"{EVIDENCE} is for another engine: its inputs are {evidence.input_hash}, "
                f"the manifest's {manifest.input_hash}; run the gates on this tree"
            )
    return EngineTree(files, manifest, evidence, tuple(problems))


def input_hash_of(manifest: bytes | None) -> str | None:
    """The input hash in a manifest's bytes; None if there is none to read."""
    try:
        value = json.loads(manifest or b"{}")["input_hash"]
    except (ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None


def _read(view: type[View], files: Mapping[str, bytes], name: str, problems: list[str]) -> View | None:
    if name not in files:
        problems.append(f"{name} is missing")
        return None
    try:
        return view.model_validate_json(files[name])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        problems.append(f"{name} cannot be read: {where}: {first['msg']}")
        return None


def _manifest_problems(
    engine: str, manifest: ManifestView, files: Mapping[str, bytes], input_hash: str | None
) -> list[str]:
    problems = []
    if manifest.engine != engine:
        problems.append(f"{MANIFEST} is of engine {manifest.engine!r}, not of {engine!r}")
    if input_hash is not None and manifest.input_hash != input_hash:
        problems.append(f"{MANIFEST} has the inputs {manifest.input_hash}, the pull request {input_hash}")
    found = set(files) - {MANIFEST, EVIDENCE}
    for path in sorted(found | set(manifest.files)):
        if path not in found:
            problems.append(f"{path} is in the manifest and not in the tree")
        elif path not in manifest.files:
            problems.append(f"{path} is in the tree and not in the manifest")
        elif sha256_bytes(files[path]) != manifest.files[path]:
            problems.append(f"{path} was changed after it was generated; its digest is not the manifest's")
    return problems


def _gate_problems(evidence: EvidenceView) -> list[str]:
    verdicts: dict[str, set[str]] = {}
    for report in evidence.gates:
        verdicts.setdefault(report.gate, set()).add(report.verdict)
    problems = [f"gate {gate} has no report in {EVIDENCE}" for gate in REQUIRED_GATES if gate not in verdicts]
    for gate, found in verdicts.items():
        if red := sorted(found - {"passed"}):
            problems.append(f"gate {gate}: {', '.join(red)}")
    return problems
