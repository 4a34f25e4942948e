"""From an engine and what is known of it to a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from metainfer.forge.protocol import DEFAULT_BASE, PublishRequest
from metainfer.pipeline.proposed import ProposedKnowledge

if TYPE_CHECKING:
    from metainfer.gates.report import Evidence
    from metainfer.generate.manifest import Manifest

NO_BENCH = "The benchmark was left out, as asked for; the goals of the spec are not judged."
NO_SANDBOX = "The gates ran without a sandbox, as asked for."


def make_request(
    manifest: Manifest,
    evidence: Evidence,
    files: Mapping[str, bytes],
    knowledge: ProposedKnowledge,
    *,
    base_sha: str,
    base: str = DEFAULT_BASE,
    notes: Sequence[str] = (),
    regenerate: bool = False,
) -> PublishRequest:
    """What a forge is asked to publish. `files`: all of the engine's, by path from the repository's root."""
    from metainfer.forge.body import BodyParts, render_body

    found: dict[str, Any] = evidence.model_dump(mode="json", by_alias=True)
    body = render_body(
        BodyParts(
            manifest=manifest.model_dump(mode="json", by_alias=True),
            evidence=found,
            knowledge=knowledge.changes,
            commands=[f"metainfer run {manifest.spec_path}", f"metainfer verify engines/{manifest.engine}"],
            notes=notes,
        )
    )
    return PublishRequest(
        engine=manifest.engine,
        input_hash=manifest.input_hash,
        base_sha=base_sha,
        engine_files=files,
        proposal_files=knowledge.files,
        title=f"{manifest.engine}: generate the engine",
        body=body,
        base=base,
        regenerate=regenerate,
    )
