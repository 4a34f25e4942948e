"""One run: prepare, ask the forge, generate, judge, measure, propose. Each step is recorded; a red one ends it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from metainfer.errors import InputError
from metainfer.files import pretty_json, write_atomic
from metainfer.gates.runner import GATES
from metainfer.generate.manifest import EVIDENCE_NAME, AgentRecord, Manifest
from metainfer.generate.specializer import generate
from metainfer.pipeline.blame import Candidate, assemble_what_fits, find_culprits
from metainfer.pipeline.knowledge import export_knowledge
from metainfer.pipeline.performance import performance_report
from metainfer.pipeline.prepare import Prepared, prepare
from metainfer.pipeline.proposed import ProposedKnowledge, read_proposals, with_own_proposal
from metainfer.pipeline.record import RunLog

if TYPE_CHECKING:
    from metainfer.bench.report import BenchReport
    from metainfer.forge.protocol import Forge, PublishOutcome
    from metainfer.gates.report import Evidence, GateReport
    from metainfer.generate.inputs import EngineInputs
    from metainfer.pipeline.agents import AgentAccess
    from metainfer.pipeline.optimise import Optimised
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
    with log.step("generate"):
        progress.start("generate")
        candidate = _generate(request, prepared, log, progress)
        engine_dir = log.folder / inputs.name
        engine = candidate.engine
        engine.write(engine_dir)
        progress.done("generate", f"{engine.manifest.code_lines} lines of code, {len(engine.manifest.units)} units")
    gates = _judge(request, prepared, engine_dir, log, progress)
    red = [report for report in gates if not report.passed]
    while red and prepared.spec.generation.fallback == "exemplar":
        lighter = _without_culprit(request, prepared, candidate, red[0], log, progress)
        if lighter is None:
            break
        candidate, engine = lighter, lighter.engine
        shutil.rmtree(engine_dir)
        engine.write(engine_dir)
        gates = _judge(request, prepared, engine_dir, log, progress)
        red = [report for report in gates if not report.passed]
    optimised = None
    if not red and request.agents and prepared.spec.generation.optimise:
        made = _optimise(request, request.agents, prepared, candidate, gates, engine_dir, log, progress)
        engine, gates, optimised = made.candidate.engine, made.gates, made.report
    bench = None
    if not red and request.bench:
        bench = _measure(request, prepared, engine_dir, log, progress)
        if goals := performance_report(prepared.spec, bench, engine_dir):
            gates.append(goals)
            red += [] if goals.passed else [goals]
    evidence = _evidence(inputs, gates, bench, optimised, engine_dir)
    write_atomic(engine_dir / EVIDENCE_NAME, evidence.encode())
    if red:
        message = f"red at {red[0].gate}; the candidate and its reports are kept, nothing was proposed"
        log.end("red", message)
        return RunResult(
            "red",
            inputs.name,
            inputs.input_hash,
            message,
            log.folder,
            engine.manifest,
            gates,
            bench,
            optimised=optimised,
        )
    knowledge = with_own_proposal(knowledge, request.proposals, log.folder, inputs.ckb_root, progress)
    outcome = _publish(request, forge, prepared, knowledge, engine_dir, engine.manifest, evidence, base, log, progress)
    log.end("published" if outcome.wrote else "unchanged", outcome.reason, outcome.number)
    status: RunStatus = "published" if outcome.wrote else "unchanged"
    return RunResult(
        status,
        inputs.name,
        inputs.input_hash,
        outcome.reason,
        log.folder,
        engine.manifest,
        gates,
        bench,
        outcome,
        knowledge=knowledge,
        optimised=optimised,
    )


def _with_agent(prepared: Prepared, request: RunRequest) -> Prepared:
    """The same with what a model is asked, and what was submitted, among the inputs."""
    from metainfer.pipeline.agents import agent_settings
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
    return replace(prepared, inputs=replace(inputs, agent=agent_settings(spec.generation, inputs.sources)))


def _generate(request: RunRequest, prepared: Prepared, log: RunLog, progress: Progress) -> Candidate:
    from metainfer.pipeline.submitted import require_good, submitted_units
    from metainfer.sandbox.sandbox import Sandbox

    inputs = prepared.inputs
    submitted = submitted_units(inputs, request.submitted)
    if submitted:
        require_good(inputs, submitted, request.state / "agents" / "kernels", Sandbox())
    if request.agents is None or inputs.agent is None:
        return Candidate(generate(inputs, submitted), tuple(submitted))
    from metainfer.pipeline.agents import require_contracts, write_units

    if prepared.spec.generation.backend != "agents":  # a model is only asked for faster units, later
        require_contracts(inputs, prepared.spec.generation)
        record = AgentRecord(settings=dict(inputs.agent), tokens=0, cost_usd=0.0)
        return Candidate(generate(inputs, submitted, agent=record), tuple(submitted), record)
    made = write_units(
        inputs,
        prepared.spec.generation,
        request.agents,
        folder=log.folder,
        state=request.state / "agents",
        sandbox=Sandbox(),
        progress=progress,
    )
    return assemble_what_fits(inputs, submitted, made.units, made.record)


def _without_culprit(
    request: RunRequest, prepared: Prepared, candidate: Candidate, red: GateReport, log: RunLog, progress: Progress
) -> Candidate | None:
    """The candidate without the written units that make a gate red; None if no model wrote such."""

    def rerun(folder: Path, gate: str) -> GateReport:
        [report] = _run_gates(request, prepared, folder, progress, [gate])
        return report

    if candidate.agent is None or not candidate.written:
        return None
    with log.step(f"blame for {red.gate}") as step:
        culprits = find_culprits(candidate, prepared.inputs, red, rerun)
        named = " and ".join(culprits)
        step.message = f"{named}: back to the exemplars" if culprits else "not what the model wrote"
        progress.note(f"red at {red.gate}: {step.message}")
    return candidate.without(culprits, prepared.inputs) if culprits else None


def _optimise(
    request: RunRequest,
    access: AgentAccess,
    prepared: Prepared,
    candidate: Candidate,
    gates: Sequence[GateReport],
    engine_dir: Path,
    log: RunLog,
    progress: Progress,
) -> Optimised:
    """The green engine, with what a model made faster in it; its folder holds it."""
    from metainfer.pipeline.optimise import optimise, tools_for

    def run_gates(folder: Path) -> list[GateReport]:
        return _run_gates(request, prepared, folder, progress)

    tools = tools_for(prepared, access, run_gates, folder=log.folder, state=request.state / "agents", progress=progress)
    with log.step("optimise") as step:
        made = optimise(prepared, candidate, gates, engine_dir, tools)
        step.message = made.report.in_words()
    write_atomic(log.folder / "gates.json", pretty_json([report.model_dump(mode="json") for report in made.gates]))
    return made


def _run_gates(
    request: RunRequest, prepared: Prepared, folder: Path, progress: Progress, gates: Sequence[str] = GATES
) -> list[GateReport]:
    from metainfer.gates.runner import run_gates
    from metainfer.sandbox.sandbox import Sandbox

    return run_gates(
        folder,
        spec=prepared.spec,
        model=prepared.model,
        ckb_root=prepared.inputs.ckb_root,
        sandbox=Sandbox(allow_unsandboxed=request.allow_unsandboxed),
        progress=progress,
        seed=request.seed,
        gates=gates,
        mypy_cache=request.state / "mypy",
    )


def _judge(
    request: RunRequest, prepared: Prepared, engine_dir: Path, log: RunLog, progress: Progress
) -> list[GateReport]:
    with log.step("gates") as step:
        gates = _run_gates(request, prepared, engine_dir, progress)
        step.message = ", ".join(f"{report.gate} {report.verdict}" for report in gates)
    write_atomic(log.folder / "gates.json", pretty_json([report.model_dump(mode="json") for report in gates]))
    return gates


def _measure(request: RunRequest, prepared: Prepared, engine_dir: Path, log: RunLog, progress: Progress) -> BenchReport:
    from metainfer.bench.engine import bench_engine
    from metainfer.bench.environment import usable_cores
    from metainfer.bench.report import BenchSettings
    from metainfer.sandbox.sandbox import Sandbox

    goals = {name: value for name, value in prepared.spec.goals.model_dump().items() if value is not None}
    with log.step("benchmark"):
        bench = bench_engine(
            engine_dir,
            model_dir=prepared.model.path,
            model=prepared.model.facts,
            peers=request.peers,
            settings=BenchSettings(threads=usable_cores(), repeats=request.repeats),
            goals=goals,
            sandbox=Sandbox(allow_unsandboxed=request.allow_unsandboxed),
            progress=progress,
        )
    write_atomic(log.folder / "bench.json", pretty_json(bench.model_dump(mode="json")))
    return bench


def _evidence(
    inputs: EngineInputs,
    gates: list[GateReport],
    bench: BenchReport | None,
    optimised: OptimiseReport | None,
    engine_dir: Path,
) -> Evidence:
    from metainfer.gates.report import for_engine_at, make_evidence

    gates = [for_engine_at(report, engine_dir, f"engines/{inputs.name}") for report in gates]
    evidence = make_evidence(inputs.input_hash, gates, bench.model_dump(mode="json") if bench else None)
    return evidence.model_copy(update={"optimise": optimised.model_dump(mode="json")}) if optimised else evidence


def _publish(
    request: RunRequest,
    forge: Forge,
    prepared: Prepared,
    knowledge: ProposedKnowledge,
    engine_dir: Path,
    manifest: Manifest,
    evidence: Evidence,
    base: str,
    log: RunLog,
    progress: Progress,
) -> PublishOutcome:
    from metainfer.forge.body import BodyParts, render_body
    from metainfer.forge.paths import collect_files
    from metainfer.forge.protocol import PublishRequest

    inputs = prepared.inputs
    evidence_data: dict[str, Any] = evidence.model_dump(mode="json", by_alias=True)
    notes = ["The gates ran without a sandbox, as asked for."] if request.allow_unsandboxed else []
    if not request.bench:
        notes.append("The benchmark was left out, as asked for; the goals of the spec are not judged.")
    body = render_body(
        BodyParts(
            manifest=manifest.model_dump(mode="json", by_alias=True),
            evidence=evidence_data,
            knowledge=knowledge.changes,
            commands=[f"metainfer run {inputs.spec_path}", f"metainfer verify engines/{inputs.name}"],
            notes=notes,
        )
    )
    files = collect_files(engine_dir, f"engines/{inputs.name}/")
    with log.step("publish"):
        progress.start("propose")
        outcome = forge.publish(
            PublishRequest(
                engine=inputs.name,
                input_hash=inputs.input_hash,
                base_sha=base,
                engine_files=files,
                proposal_files=knowledge.files,
                title=f"{inputs.name}: generate the engine",
                body=body,
                regenerate=request.regenerate,
            )
        )
        progress.done("propose", f"{outcome.status}: {outcome.reason}")
    return outcome


def _origin(prepared: Prepared, unit: str) -> str:
    routing = prepared.inputs.routing
    if unit not in routing.exemplars:
        return f"{routing.by_unit[unit].id} v{routing.by_unit[unit].version}: to be written, it has no exemplar"
    contract, exemplar = routing.source_of(unit)
    return f"{contract.id} v{contract.version}: {exemplar.path}"
