"""One run: prepare, ask the forge, generate, judge, measure, propose. Each step is recorded; a red one ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from metainfer.errors import InputError
from metainfer.files import write_atomic
from metainfer.generate.manifest import EVIDENCE_NAME, Manifest
from metainfer.pipeline.knowledge import export_knowledge
from metainfer.pipeline.prepare import Prepared, asking, prepare
from metainfer.pipeline.proposed import ProposedKnowledge, read_proposals, with_own_proposal
from metainfer.pipeline.proposing import NO_BENCH, NO_SANDBOX, make_request
from metainfer.pipeline.record import RunLog
from metainfer.pipeline.stages import Judged, Stages
from metainfer.pipeline.stopping import stop_label_watch

if TYPE_CHECKING:
    from metainfer.agents.recorded import Recorded
    from metainfer.bench.report import BenchReport
    from metainfer.forge.protocol import Forge, PublishOutcome
    from metainfer.gates.report import Evidence, GateReport
    from metainfer.pipeline.agents import AgentAccess
    from metainfer.pipeline.optimise_report import OptimiseReport
    from metainfer.progress import Progress

RunStatus = Literal["planned", "unchanged", "published", "red"]


@dataclass(frozen=True)
class RunRequest:
    """What to run, and how."""

    spec_path: Path
    repo_root: Path
    state: Path
    """Run records and candidates."""
    cache: Path
    """Models."""
    dry_run: bool = False
    regenerate: bool = False
    """Go on although the forge would leave the pull request as it is."""
    allow_unsandboxed: bool = False
    bench: bool = True
    peers: Sequence[str] = ("transformers",)
    repeats: int = 3
    seed: int = 0
    agents: AgentAccess | None = None
    """Where the model is, for specs whose units a model writes."""
    recorded: Recorded | None = None
    """What it said already, where no model can be asked."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the spec's `generation` that this run sets otherwise."""
    submitted: Mapping[str, Path] = field(default_factory=dict)
    """Unit name to a file that somebody wrote, which makes all the units of that unit's contract."""
    proposals: Sequence[Path] = ()
    """Knowledge to propose beside the engine, for the next generation; this one does not rest on it."""


@dataclass(frozen=True)
class RunResult:
    """What came of it."""

    status: RunStatus
    engine: str
    input_hash: str
    message: str
    run_folder: Path | None = None
    manifest: Manifest | None = None
    gates: Sequence[GateReport] = ()
    bench: BenchReport | None = None
    outcome: PublishOutcome | None = None
    plan: Mapping[str, str] = field(default_factory=dict)
    """Unit name to the exemplar it is made from."""
    knowledge: ProposedKnowledge = field(default_factory=ProposedKnowledge)
    optimised: OptimiseReport | None = None


def run(request: RunRequest, forge: Forge, progress: Progress) -> RunResult:
    """Bring the spec's engine to an open pull request, or find that there is nothing to do, or that it is red.

    Raises what refuses the spec (InputError, RefusedError), and ConflictError if a person's decision stands in the way.
    """
    base = forge.base_sha()
    ckb_root = export_knowledge(forge, base, request.state)
    prepared = _with_agent(
        prepare(
            request.spec_path,
            ckb_root,
            request.repo_root,
            request.cache,
            progress,
            generation=request.generation,
            submitted=request.submitted,
        ),
        request,
    )
    inputs = prepared.inputs
    if request.agents is not None:
        halted = stop_label_watch(forge, inputs.name)
        request = replace(request, agents=replace(request.agents, halted=halted))
    knowledge = read_proposals(request.proposals, ckb_root)
    preview = forge.preview(inputs.name, inputs.input_hash)
    if not preview.wrote and not request.regenerate:
        reason = preview.reason
        if knowledge.files:
            reason += "; the knowledge was not proposed, since nothing was made: --regenerate makes the engine again"
        return RunResult("unchanged", inputs.name, inputs.input_hash, reason, outcome=preview, knowledge=knowledge)
    if request.dry_run:
        plan = {unit: _origin(prepared, unit) for unit in inputs.routing.by_unit}
        return RunResult(
            "planned", inputs.name, inputs.input_hash, preview.reason, outcome=preview, plan=plan, knowledge=knowledge
        )
    log = RunLog.begin(
        request.state, engine=inputs.name, spec=inputs.spec_path, input_hash=inputs.input_hash, base=base
    )
    return _make(request, forge, prepared, knowledge, log, base, progress)


def _make(
    request: RunRequest,
    forge: Forge,
    prepared: Prepared,
    knowledge: ProposedKnowledge,
    log: RunLog,
    base: str,
    progress: Progress,
) -> RunResult:
    inputs = prepared.inputs
    stages = Stages(request, prepared, log, progress)
    judged = stages.all()
    evidence = stages.evidence(judged)
    write_atomic(stages.engine_dir / EVIDENCE_NAME, evidence.encode())
    found = RunResult(
        "red",
        inputs.name,
        inputs.input_hash,
        "",
        log.folder,
        judged.candidate.engine.manifest,
        judged.gates,
        judged.bench,
        optimised=judged.optimised,
    )
    if judged.red:
        message = f"red at {judged.red[0].gate}; the candidate and its reports are kept, nothing was proposed"
        log.end("red", message)
        return replace(found, message=message)
    knowledge = with_own_proposal(knowledge, request.proposals, log.folder, inputs.ckb_root, progress)
    outcome = _publish(stages, forge, judged, evidence, knowledge, base)
    log.end("published" if outcome.wrote else "unchanged", outcome.reason, outcome.number)
    status: RunStatus = "published" if outcome.wrote else "unchanged"
    return replace(found, status=status, message=outcome.reason, outcome=outcome, knowledge=knowledge)


def _with_agent(prepared: Prepared, request: RunRequest) -> Prepared:
    """The same with what a model is asked, and what was submitted, among the inputs."""
    from metainfer.pipeline.submitted import submitted_units

    spec = prepared.spec
    overrides = {own.contract: own.digest for own in submitted_units(prepared.inputs, request.submitted)}
    inputs = replace(prepared.inputs, overrides=overrides)
    if not spec.generation.asks_a_model:
        if overrides and request.allow_unsandboxed:
            raise InputError("what was submitted runs in the sandbox or not at all; leave --allow-unsandboxed out")
        return replace(prepared, inputs=inputs)
    if request.agents is None:
        raise InputError("a model is to take part in this engine; say where it is: --base-url http://HOST:PORT/v1")
    request.agents.priced_for(spec.generation.model or "")
    if request.allow_unsandboxed:
        raise InputError("what a model wrote runs in the sandbox or not at all; leave --allow-unsandboxed out")
    return asking(replace(prepared, inputs=inputs))


def _publish(
    stages: Stages, forge: Forge, judged: Judged, evidence: Evidence, knowledge: ProposedKnowledge, base: str
) -> PublishOutcome:
    from metainfer.forge.paths import collect_files

    request, inputs = stages.request, stages.prepared.inputs
    notes = [NO_SANDBOX] if request.allow_unsandboxed else []
    if not request.bench:
        notes.append(NO_BENCH)
    asked = make_request(
        judged.candidate.engine.manifest,
        evidence,
        collect_files(stages.engine_dir, f"engines/{inputs.name}/"),
        knowledge,
        base_sha=base,
        notes=notes,
        regenerate=request.regenerate,
    )
    with stages.log.step("publish"):
        stages.progress.start("propose")
        outcome = forge.publish(asked)
        stages.progress.done("propose", f"{outcome.status}: {outcome.reason}")
    return outcome


def _origin(prepared: Prepared, unit: str) -> str:
    routing = prepared.inputs.routing
    if unit not in routing.exemplars:
        return f"{routing.by_unit[unit].id} v{routing.by_unit[unit].version}: to be written, it has no exemplar"
    contract, exemplar = routing.source_of(unit)
    return f"{contract.id} v{contract.version}: {exemplar.path}"
