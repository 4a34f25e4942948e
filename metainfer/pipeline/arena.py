"""Where variants of a green engine's units compete with it: every gate first, then the measurement."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.agents.optimiser import variants_of
from metainfer.bench.duel import Duel
from metainfer.bench.subject import SubjectError, brief
from metainfer.gates.runner import summary
from metainfer.generate.assemble import AssemblyError
from metainfer.generate.specializer import generate
from metainfer.generate.written import WrittenUnits
from metainfer.pipeline.agents import AgentAccess, with_newline
from metainfer.pipeline.blame import Candidate
from metainfer.pipeline.optimise_report import Trial, Tried

if TYPE_CHECKING:
    from metainfer.agents.implementer import Attempt, Outcome
    from metainfer.gates.report import GateReport
    from metainfer.generate.inputs import EngineInputs
    from metainfer.progress import Progress
    from metainfer.sandbox import Sandbox

RunGates = Callable[[Path], "list[GateReport]"]
"""All gates on an engine's folder."""
RunDuel = Callable[[Path, Path], Duel]
"""Old engine's folder, new engine's folder. Raises SubjectError where it cannot be measured."""


@dataclass(frozen=True)
class Tools:
    """How engines are judged and measured, and where their model is."""

    access: AgentAccess
    sandbox: Sandbox
    gates: RunGates
    duel: RunDuel
    folder: Path
    """Of the run."""
    state: Path
    """Of all runs' agents."""
    progress: Progress


def with_units(inputs: EngineInputs, candidate: Candidate, contract: str, code: str) -> Candidate:
    """The candidate with other units for a contract. Raises AssemblyError if they do not fit."""
    own = WrittenUnits(contract, with_newline(code), "agents")
    written = (*(other for other in candidate.written if other.contract != contract), own)
    return Candidate(generate(inputs, written, agent=candidate.agent), written, candidate.agent)


class Arena:
    """The engine that stands, and the variants that it is held against one after another."""

    def __init__(
        self, inputs: EngineInputs, candidate: Candidate, reports: list[GateReport], engine_dir: Path, tools: Tools
    ) -> None:
        self.candidate = candidate
        self.reports = reports
        self._inputs = inputs
        self._engine_dir = engine_dir
        self._tools = tools
        self._reproduce = {report.gate: report.reproduce for report in reports}

    def try_all(self, outcome: Outcome, share: float) -> Tried:
        """Each variant of one contract against the engine as it stands by then."""
        trials = [self._try(outcome.contract, attempt) for attempt in variants_of(outcome)]
        findings = [attempt.findings[0] for attempt in outcome.attempts if attempt.findings]
        tried = Tried(
            contract=outcome.contract,
            share=share,
            attempts=len(outcome.attempts),
            finding=findings[-1] if findings else "",
            stopped=outcome.stopped,
            trials=tuple(trials),
        )
        self._tools.progress.note(f"{outcome.contract}: {tried.in_words()}")
        return tried

    def finish(self, kept: Sequence[str], tokens: int, usd: float) -> Candidate:
        """Write the engine with its record of what was asked and kept: the same code, in another manifest."""
        agent = self.candidate.agent
        assert agent is not None
        record = agent.faster(kept, tokens, usd)
        engine = generate(self._inputs, self.candidate.written, agent=record)
        if engine.manifest.files != self.candidate.engine.manifest.files:
            raise AssertionError("the record of an optimisation changed the engine that was judged")
        self.candidate = Candidate(engine, self.candidate.written, record)
        self._write()
        return self.candidate

    def _try(self, contract: str, attempt: Attempt) -> Trial:
        progress = self._tools.progress
        which = {"round": attempt.round, "sample": attempt.sample}
        step = f"try {contract}, answer {attempt.sample or attempt.round}"
        progress.note(step)
        try:
            variant = with_units(self._inputs, self.candidate, contract, attempt.code)
        except AssemblyError as error:  # it clashes with a variant that was kept meanwhile
            return Trial(**which, verdict="red", reason=str(error))
        with tempfile.TemporaryDirectory(prefix="metainfer-variant-") as scratch:
            folder = Path(scratch, self._inputs.name)
            variant.engine.write(folder)
            reports = self._tools.gates(folder)
            if red := next((report for report in reports if not report.passed), None):
                return Trial(**which, verdict="red", reason=f"{red.gate} gate: {summary(red)}")
            progress.start(f"measure {contract}")
            try:
                duel = self._tools.duel(self._engine_dir, folder)
            except SubjectError as error:
                return Trial(**which, verdict="not measured", reason=brief(str(error)))
            finally:
                progress.done(f"measure {contract}")
        if not duel.won:
            return Trial(**which, verdict="not faster", reason=str(duel), duel=duel)
        self.candidate = variant
        # The same commands on the engine's own folder, where it lies from now on.
        self.reports = [report.model_copy(update={"reproduce": self._reproduce[report.gate]}) for report in reports]
        self._write()
        return Trial(**which, verdict="kept", reason=str(duel), duel=duel)

    def _write(self) -> None:
        shutil.rmtree(self._engine_dir)
        self.candidate.engine.write(self._engine_dir)
