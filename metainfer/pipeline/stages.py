"""The stages of one run that make, judge and measure an engine. What they find lies in the run's folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.files import pretty_json, write_atomic
from metainfer.generate.manifest import AgentRecord
from metainfer.generate.specializer import generate
from metainfer.pipeline.blame import Candidate, assemble_what_fits, find_culprits
from metainfer.pipeline.judging import Judging
from metainfer.pipeline.performance import performance_report

if TYPE_CHECKING:
    from metainfer.bench.report import BenchReport
    from metainfer.gates.report import Evidence, GateReport
    from metainfer.pipeline.agents import AgentAccess
    from metainfer.pipeline.optimise import Optimised
    from metainfer.pipeline.optimise_report import OptimiseReport
    from metainfer.pipeline.prepare import Prepared
    from metainfer.pipeline.record import RunLog
    from metainfer.pipeline.run import RunRequest
    from metainfer.progress import Progress


@dataclass
class Judged:
    """A candidate and what is known of it. Its files lie in the run's folder."""

    candidate: Candidate
    gates: list[GateReport]
    bench: BenchReport | None = None
    optimised: OptimiseReport | None = None

    @property
    def red(self) -> list[GateReport]:
        """The gates that do not hold, the goals among them."""
        return [report for report in self.gates if not report.passed]


@dataclass(frozen=True)
class Stages:
    """What every stage of a run needs."""

    request: RunRequest
    prepared: Prepared
    log: RunLog
    progress: Progress
    engine_dir: Path = field(init=False)
    judging: Judging = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "engine_dir", self.log.folder / self.prepared.inputs.name)
        request = self.request
        judging = Judging(
            self.prepared,
            request.state,
            self.progress,
            seed=request.seed,
            allow_unsandboxed=request.allow_unsandboxed,
            peers=request.peers,
            repeats=request.repeats,
        )
        object.__setattr__(self, "judging", judging)

    def all(self) -> Judged:
        """Make the engine, judge it, let what breaks it fall back, let a model make it faster, measure it."""
        with self.log.step("generate"):
            self.progress.start("generate")
            candidate = self._generate()
            candidate.engine.write(self.engine_dir)
            manifest = candidate.engine.manifest
            self.progress.done("generate", f"{manifest.code_lines} lines of code, {len(manifest.units)} units")
        judged = Judged(candidate, self._judge())
        while judged.red and self.prepared.spec.generation.fallback == "exemplar":
            lighter = self._without_culprits(judged.candidate, judged.red[0])
            if lighter is None:
                break
            shutil.rmtree(self.engine_dir)
            lighter.engine.write(self.engine_dir)
            judged = Judged(lighter, self._judge())
        if not judged.red and self.request.agents and self.prepared.spec.generation.optimise:
            made = self._optimise(self.request.agents, judged)
            judged = Judged(made.candidate, list(made.gates), optimised=made.report)
        if not judged.red and self.request.bench:
            judged.bench = self._measure()
            if goals := performance_report(self.prepared.spec, judged.bench, self.engine_dir):
                judged.gates.append(goals)
        return judged

    def evidence(self, judged: Judged) -> Evidence:
        """All that was found, as it travels with the engine."""
        return self.judging.evidence(self.engine_dir, judged.gates, judged.bench, judged.optimised)

    def _generate(self) -> Candidate:
        from metainfer.pipeline.submitted import require_good, submitted_units
        from metainfer.sandbox.sandbox import Sandbox

        request, inputs, generation = self.request, self.prepared.inputs, self.prepared.spec.generation
        submitted = submitted_units(inputs, request.submitted)
        if submitted:
            require_good(inputs, submitted, request.state / "agents" / "kernels", Sandbox())
        access = request.recorded or request.agents
        if access is None or inputs.agent is None:
            return Candidate(generate(inputs, submitted), tuple(submitted))
        from metainfer.pipeline.agents import require_contracts, write_units

        if generation.backend != "agents":  # a model is only asked for faster units, later
            require_contracts(inputs, generation)
            record = AgentRecord(settings=dict(inputs.agent), tokens=0, cost_usd=0.0)
            return Candidate(generate(inputs, submitted, agent=record), tuple(submitted), record)
        made = write_units(
            inputs,
            generation,
            access,
            folder=self.log.folder,
            state=request.state / "agents",
            sandbox=Sandbox(),
            progress=self.progress,
        )
        return assemble_what_fits(inputs, submitted, made.units, made.record)

    def _judge(self) -> list[GateReport]:
        with self.log.step("gates") as step:
            gates = self.judging.gates(self.engine_dir)
            step.message = ", ".join(f"{report.gate} {report.verdict}" for report in gates)
        self._keep_gates(gates)
        return gates

    def _without_culprits(self, candidate: Candidate, red: GateReport) -> Candidate | None:
        """The candidate without the written units that make a gate red; None if no model wrote such."""

        def rerun(folder: Path, gate: str) -> GateReport:
            [report] = self.judging.gates(folder, [gate])
            return report

        if candidate.agent is None or not candidate.written:
            return None
        with self.log.step(f"blame for {red.gate}") as step:
            culprits = find_culprits(candidate, self.prepared.inputs, red, rerun)
            named = " and ".join(culprits)
            step.message = f"{named}: back to the exemplars" if culprits else "not what the model wrote"
            self.progress.note(f"red at {red.gate}: {step.message}")
        return candidate.without(culprits, self.prepared.inputs) if culprits else None

    def _optimise(self, access: AgentAccess, judged: Judged) -> Optimised:
        """The green engine, with what a model made faster in it; its folder holds it."""
        from metainfer.pipeline.optimise import optimise, tools_for

        tools = tools_for(
            self.prepared,
            access,
            self.judging.gates,
            folder=self.log.folder,
            state=self.request.state / "agents",
            progress=self.progress,
        )
        with self.log.step("optimise") as step:
            made = optimise(self.prepared, judged.candidate, judged.gates, self.engine_dir, tools)
            step.message = made.report.in_words()
        self._keep_gates(made.gates)
        return made

    def _measure(self) -> BenchReport:
        with self.log.step("benchmark"):
            bench = self.judging.measure(self.engine_dir)
        write_atomic(self.log.folder / "bench.json", pretty_json(bench.model_dump(mode="json")))
        return bench

    def _keep_gates(self, gates: Sequence[GateReport]) -> None:
        write_atomic(self.log.folder / "gates.json", pretty_json([report.model_dump(mode="json") for report in gates]))
