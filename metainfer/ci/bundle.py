"""The folder in which a candidate goes from the job that made it to those that judge and publish it.

request.json    what it is made from (`BundleRequest`)
engine/         the engine's files, manifest included, evidence not
ckb/            proposals of knowledge, as `metainfer run --propose` reads them
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metainfer.ci.untrusted import HostileError, parse, read_folder
from metainfer.errors import InputError
from metainfer.files import pretty_json, sha256_bytes, write_atomic
from metainfer.forge.paths import path_complaints
from metainfer.generate.manifest import EVIDENCE_NAME, MANIFEST_NAME, Manifest

REQUEST_NAME = "request.json"
ENGINE, PROPOSALS = "engine/", "ckb/"
_MAX_REQUEST_BYTES = 16 << 10
_PROPOSAL = re.compile(r"ckb/proposal-[0-9]{1,3}\.json")

Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$", max_length=64)]


class BundleRequest(BaseModel):
    """What a candidate is, in as few words as the next job needs to make sure of it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)

    schema_: Literal["metainfer/bundle/v1"] = Field("metainfer/bundle/v1", alias="schema")
    engine: Name
    spec_path: Annotated[str, Field(pattern=r"^specs/[a-z0-9._-]+\.ya?ml$", max_length=80)]
    input_hash: Digest
    base_sha: Sha
    """The commit whose specs, knowledge and gates make and judge the engine."""
    generator_version: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{1,40}$")]


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read: shaped as it must be, and believed in nothing else."""

    request: BundleRequest
    manifest: Manifest
    engine: Mapping[str, bytes]
    """By path within the engine's folder."""
    proposals: Mapping[str, bytes]
    """By path within the bundle."""

    def lay_out(self, folder: Path) -> Path:
        """Write the engine below `folder`, under its name, and return where."""
        target = folder / self.request.engine
        for path, data in self.engine.items():
            write_atomic(target / path, data)
        return target


def write_bundle(
    folder: Path, request: BundleRequest, engine: Mapping[str, bytes], proposals: Mapping[str, bytes]
) -> None:
    """Write a bundle to `folder`, which must not be there or be empty; `request.json` last. InputError otherwise."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already and not empty; name another folder with --out")
    for path, data in engine.items():
        write_atomic(folder / ENGINE / path, data)
    for path, data in proposals.items():
        write_atomic(folder / path, data)
    write_atomic(folder / REQUEST_NAME, pretty_json(request.model_dump(mode="json", by_alias=True)))


def read_bundle(folder: Path) -> Bundle:
    """Read what another job left. Raises HostileError with everything that is wrong."""
    where = "the bundle"
    files = read_folder(folder, where, (REQUEST_NAME, ENGINE, PROPOSALS))
    request = parse(BundleRequest, files, REQUEST_NAME, where, _MAX_REQUEST_BYTES)
    engine = {path.removeprefix(ENGINE): data for path, data in files.items() if path.startswith(ENGINE)}
    proposals = {path: data for path, data in files.items() if path.startswith(PROPOSALS)}
    complaints = path_complaints(
        (f"engines/{request.engine}/{path}" for path in engine), [f"engines/{request.engine}/"]
    )
    complaints += _proposal_complaints(proposals)
    if EVIDENCE_NAME in engine:
        complaints.append(f"engine/{EVIDENCE_NAME}: evidence comes from the job that judged, not from this one")
    if complaints:
        raise HostileError(where, complaints)
    manifest = _manifest(engine, where)
    complaints = _manifest_complaints(request, manifest, engine)
    if complaints:
        raise HostileError(where, complaints)
    return Bundle(request, manifest, engine, proposals)


def _proposal_complaints(proposals: Mapping[str, bytes]) -> list[str]:
    return [f"{ascii(path)[1:-1]}: not named as proposals are" for path in proposals if not _PROPOSAL.fullmatch(path)]


def _manifest(engine: Mapping[str, bytes], where: str) -> Manifest:
    data = engine.get(MANIFEST_NAME)
    if data is None:
        raise HostileError(where, [f"engine/{MANIFEST_NAME}: is missing"])
    try:
        manifest = Manifest.model_validate_json(data)
    except (ValidationError, RecursionError):
        raise HostileError(where, [f"engine/{MANIFEST_NAME}: not a manifest of this version"]) from None
    if manifest.encode() != data:
        raise HostileError(where, [f"engine/{MANIFEST_NAME}: not written as manifests are"])
    return manifest


def _manifest_complaints(request: BundleRequest, manifest: Manifest, engine: Mapping[str, bytes]) -> list[str]:
    pairs = (
        ("engine", manifest.engine, request.engine),
        ("spec_path", manifest.spec_path, request.spec_path),
        ("input_hash", manifest.input_hash, request.input_hash),
        ("generator", manifest.generator.version, request.generator_version),
    )
    odd = [name for name, ours, theirs in pairs if ours != theirs]
    complaints = [f"engine/{MANIFEST_NAME}: its {name} is not the request's" for name in odd]
    listed, found = manifest.files, engine.keys() - {MANIFEST_NAME}
    for path in sorted(found | listed.keys()):
        shown = ascii(path)[1:-1][:200]
        if path not in listed:
            complaints.append(f"engine/{shown}: not in the manifest")
        elif path not in found:
            complaints.append(f"engine/{shown}: in the manifest and not in the bundle")
        elif sha256_bytes(engine[path]) != listed[path]:
            complaints.append(f"engine/{shown}: its digest is not the manifest's")
    return complaints
