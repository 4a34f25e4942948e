"""The job that goes on with a run as far as its replies reach: generated code in the sandbox, no secret in reach."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.ci.making import bundle_engine
from metainfer.ci.secrets import require_no_secrets
from metainfer.pipeline.advance import BUNDLE, Advanced, RoundPlan, advance

if TYPE_CHECKING:
    from metainfer.ci.deployment import Deployment
    from metainfer.progress import Progress


def advance_round(
    deployment: Deployment,
    replies: Path,
    out: Path,
    *,
    cache: Path,
    progress: Progress,
    final: bool = False,
    seed: int = 0,
    environment: Mapping[str, str] | None = None,
) -> Advanced:
    """One round; a green engine is bundled in `out/bundle`. Raises SecretInReachError before anything else."""
    require_no_secrets(os.environ if environment is None else environment)
    prepared = deployment.prepared(cache, progress)
    plan = RoundPlan(deployment.base, deployment.checkout.root, cache, replies, out, final, seed)
    advanced = advance(prepared, plan, progress)
    if advanced.engine is not None:
        bundle_engine(out / BUNDLE, deployment, prepared, advanced.engine, advanced.proposals)
    return advanced
