"""The job that makes a candidate: it reads, folds and writes a bundle, and runs nothing that was generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from metainfer.ci.bundle import PROPOSALS, BundleRequest, write_bundle
from metainfer.errors import InputError
from metainfer.files import read_regular
from metainfer.forge.paths import MAX_FILE_BYTES
from metainfer.forge.protocol import DEFAULT_BASE, Status
from metainfer.generate import GENERATOR_VERSION
from metainfer.generate.specializer import GeneratedEngine, generate
from metainfer.pipeline.advance import require_rounds

if TYPE_CHECKING:
    from metainfer.ci.deployment import Deployment
    from metainfer.forge.protocol import Forge
    from metainfer.pipeline.prepare import Prepared
    from metainfer.progress import Progress

State = Literal["made", "asks", "unchanged", "closed", "blocked"]


@dataclass(frozen=True)
class Made:
    """What became of it. Only `made` has a bundle; `asks` goes on in rounds, since a model is to write."""

    state: State
    engine: str
    input_hash: str
    reason: str
    number: int | None = None
    """Of the pull request that the reason speaks of."""


def make_candidate(
    deployment: Deployment,
    out: Path,
    *,
    cache: Path,
    progress: Progress,
    forge: Forge | None = None,
    base_branch: str = DEFAULT_BASE,
    proposals: Sequence[Path] = (),
    regenerate: bool = False,
) -> Made:
    """Write the bundle of the specializer's engine to `out`, unless the forge has no use for it, or a model takes part.

    Raises what refuses the spec, also RefusedError for one that cannot be made in rounds, before anything is paid for.
    """
    prepared = deployment.prepared(cache, progress)
    inputs = prepared.inputs
    if forge is not None and not regenerate:
        preview = forge.preview(inputs.name, inputs.input_hash, base_branch)
        if not preview.wrote:
            state: State = {Status.CLOSED: "closed", Status.BLOCKED: "blocked"}.get(preview.status, "unchanged")  # type: ignore[assignment]
            return Made(state, inputs.name, inputs.input_hash, preview.reason, preview.number)
    if inputs.agent is not None:
        require_rounds(prepared)
        if proposals:
            raise InputError("a run with a model proposes what it learns itself; leave --propose out")
        return Made("asks", inputs.name, inputs.input_hash, "a model writes its units: `ci advance` and `ci ask`")
    progress.start("generate")
    engine = generate(inputs)
    progress.done("generate", f"{engine.manifest.code_lines} lines of code, {len(engine.manifest.units)} units")
    bundle_engine(out, deployment, prepared, engine, proposals)
    return Made("made", inputs.name, inputs.input_hash, "a candidate was made")


def bundle_engine(
    out: Path,
    deployment: Deployment,
    prepared: Prepared,
    engine: GeneratedEngine,
    proposals: Sequence[Path] = (),
) -> None:
    """Write an engine that was made for a deployment, and the knowledge proposed beside it, as a bundle."""
    from metainfer.pipeline.proposed import read_proposals

    read_proposals(proposals, prepared.inputs.ckb_root)  # refused now, not after minutes of gates
    request = BundleRequest(
        engine=prepared.inputs.name,
        spec_path=deployment.spec_path,
        input_hash=prepared.inputs.input_hash,
        base_sha=deployment.base,
        generator_version=str(GENERATOR_VERSION),
    )
    kept = {
        f"{PROPOSALS}proposal-{number}.json": read_regular(path, MAX_FILE_BYTES)
        for number, path in enumerate(proposals)
    }
    write_bundle(out, request, engine.files, kept)
