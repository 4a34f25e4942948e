"""The job that runs what was generated: in the sandbox, by the base's gates and knowledge, with no secret in reach."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.ci.bundle import read_bundle
from metainfer.ci.report import write_report
from metainfer.ci.secrets import require_no_secrets
from metainfer.ci.trust import require_reproduced, require_same_deployment
from metainfer.ci.untrusted import HostileError
from metainfer.pipeline.judging import Judging
from metainfer.pipeline.performance import performance_report

if TYPE_CHECKING:
    from metainfer.bench.report import BenchReport
    from metainfer.ci.deployment import Deployment
    from metainfer.gates.report import Evidence
    from metainfer.progress import Progress


@dataclass(frozen=True)
class Effort:
    """How much to judge."""

    bench: bool = True
    repeats: int = 3
    seed: int = 0


def judge_bundle(
    bundle_dir: Path,
    report_dir: Path,
    deployment: Deployment,
    *,
    cache: Path,
    state: Path,
    progress: Progress,
    effort: Effort | None = None,
    environment: Mapping[str, str] | None = None,
) -> Evidence:
    """Judge the bundle's engine and write what was found to `report_dir`; a red verdict is written as any other.

    Raises SecretInReachError before anything else, HostileError for a bundle that is not for this deployment or not
    what trusted code makes of it, and what refuses the spec. Nothing of the engine has run then.
    """
    effort = effort or Effort()
    require_no_secrets(os.environ if environment is None else environment)
    bundle = read_bundle(bundle_dir)
    require_same_deployment(bundle, deployment)
    require_reproduced(bundle, deployment)
    prepared = deployment.prepared(cache, progress)
    if prepared.inputs.input_hash != bundle.request.input_hash:
        raise HostileError(
            "the bundle", ["request.json: input_hash is not that of the base's spec, model and knowledge"]
        )
    judging = Judging(prepared, state, progress, seed=effort.seed, repeats=effort.repeats)
    with tempfile.TemporaryDirectory(prefix="metainfer-judged-") as scratch:
        engine_dir = bundle.lay_out(Path(scratch))
        gates = judging.gates(engine_dir)
        bench: BenchReport | None = None
        if effort.bench and all(report.passed for report in gates):
            bench = judging.measure(engine_dir)
            if goals := performance_report(prepared.spec, bench, engine_dir):
                gates.append(goals)
        evidence = judging.evidence(engine_dir, gates, bench)
    write_report(report_dir, evidence, bench)
    return evidence
