"""How an engine's folder is judged and measured, wherever that happens: in a run, or in a job of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.gates.runner import GATES

if TYPE_CHECKING:
    from metainfer.bench.report import BenchReport
    from metainfer.gates.report import Evidence, GateReport
    from metainfer.pipeline.optimise_report import OptimiseReport
    from metainfer.pipeline.prepare import Prepared
    from metainfer.progress import Progress
    from metainfer.sandbox import Sandbox


@dataclass(frozen=True)
class Judging:
    """One deployment's gates and benchmark. Their code, knowledge and reference are the base's, never the engine's."""

    prepared: Prepared
    state: Path
    """Scratch data that one run leaves to the next."""
    progress: Progress
    seed: int = 0
    allow_unsandboxed: bool = False
    peers: Sequence[str] = ("transformers",)
    repeats: int = 3

    def gates(self, engine_dir: Path, names: Sequence[str] = GATES) -> list[GateReport]:
        """A report for each gate that ran; the first red one is the last."""
        from metainfer.gates.runner import run_gates

        return run_gates(
            engine_dir,
            spec=self.prepared.spec,
            model=self.prepared.model,
            ckb_root=self.prepared.inputs.ckb_root,
            sandbox=self._sandbox(),
            progress=self.progress,
            seed=self.seed,
            gates=names,
            mypy_cache=self.state / "mypy",
        )

    def measure(self, engine_dir: Path) -> BenchReport:
        """The engine's figures beside its peers', against the spec's goals."""
        from metainfer.bench.engine import bench_engine
        from metainfer.bench.environment import usable_cores
        from metainfer.bench.report import BenchSettings

        goals = {name: value for name, value in self.prepared.spec.goals.model_dump().items() if value is not None}
        return bench_engine(
            engine_dir,
            model_dir=self.prepared.model.path,
            model=self.prepared.model.facts,
            peers=self.peers,
            settings=BenchSettings(threads=usable_cores(), repeats=self.repeats),
            goals=goals,
            sandbox=self._sandbox(),
            progress=self.progress,
        )

    def evidence(
        self,
        engine_dir: Path,
        gates: Sequence[GateReport],
        bench: BenchReport | None,
        optimised: OptimiseReport | None = None,
    ) -> Evidence:
        """All that was found of an engine that was judged in `engine_dir`, as it travels with it."""
        from metainfer.gates.report import for_engine_at, make_evidence

        inputs = self.prepared.inputs
        placed = [for_engine_at(report, engine_dir, f"engines/{inputs.name}") for report in gates]
        evidence = make_evidence(inputs.input_hash, placed, bench.model_dump(mode="json") if bench else None)
        if optimised is None:
            return evidence
        return evidence.model_copy(update={"optimise": optimised.model_dump(mode="json")})

    def _sandbox(self) -> Sandbox:
        from metainfer.sandbox.sandbox import Sandbox

        return Sandbox(allow_unsandboxed=self.allow_unsandboxed)
