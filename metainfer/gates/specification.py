"""The spec gate: valid, covered, feasible. All of it is arithmetic and look-up; nothing is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.checkpoint.feasibility import feasibility
from metainfer.ckb.facts import Facts
from metainfer.ckb.routing import coverage, route
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import RefusedError
from metainfer.gates.report import GateLog, GateReport, reproduction, run_gate
from metainfer.generate.blueprint import NEEDED_UNITS
from metainfer.generate.manifest import read_manifest
from metainfer.spec.load import refuse_unserved

if TYPE_CHECKING:
    from metainfer.checkpoint.sources import ModelFolder
    from metainfer.spec.models import Spec


def spec_gate(engine_dir: Path, spec: Spec, model: ModelFolder, ckb_root: Path) -> GateReport:
    """Whether `spec` can be served, and whether the engine in `engine_dir` was made for it and for `model`."""

    def body(log: GateLog) -> None:
        try:
            refuse_unserved(spec)
            fits = feasibility(spec, model.facts)
        except RefusedError as error:
            log.find(str(error))
            return
        log.figure("bytes_needed", fits.needed_bytes)
        log.figure("bytes_of_machine", fits.machine_bytes)
        if not fits.fits:
            log.find(f"does not fit this machine: {fits}")
        facts = Facts.from_spec(spec, model.facts)
        routing = route(KnowledgeBase.load(ckb_root), facts)
        written = {unit.contract for unit in read_manifest(engine_dir).units if unit.backend != "specializer"}
        gaps = coverage(routing, NEEDED_UNITS, written)
        for gap in gaps:
            log.find(gap.reason, gap.unit)
        log.figure("contracts", len(routing.contracts))
        log.figure("units_covered", len(NEEDED_UNITS) - len(gaps))
        _judge_manifest(log, engine_dir, spec, model, facts)

    return run_gate("spec", reproduction("spec", engine_dir), body)


def _judge_manifest(log: GateLog, engine_dir: Path, spec: Spec, model: ModelFolder, facts: Facts) -> None:
    manifest = read_manifest(engine_dir)
    if manifest.engine != spec.name:
        log.find(f"the engine is {manifest.engine}, the spec's name is {spec.name}", "manifest.json")
    if manifest.model.digest != model.digest:
        log.find(f"the engine is for the model {manifest.model.digest}, the spec's is {model.digest}", "manifest.json")
    if manifest.facts != facts.model_dump(mode="json"):
        other = sorted(k for k, v in facts.model_dump(mode="json").items() if manifest.facts.get(k) != v)
        log.find(f"the engine was made for other facts: {', '.join(other)}", "manifest.json")
