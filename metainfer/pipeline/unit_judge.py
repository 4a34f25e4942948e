"""Judges one contract's written units while they are being written: assembled with everything else, then checked.

The rest of the engine is scaffold: exemplars, which the writer never sees, and where there are none what was written
before, or stubs. What is judged here is judged again as a whole by every gate; this only finds faults early and says
whose they are.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.agents.brief import Brief
from metainfer.errors import MachineError
from metainfer.gates.report import GateReport
from metainfer.gates.static import static_gate
from metainfer.gates.unit import unit_gate
from metainfer.generate.assemble import AssemblyError, undefined_names
from metainfer.generate.blueprint import UNIT_MODULES
from metainfer.generate.folding import FoldError
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.specializer import generate
from metainfer.generate.written import WrittenUnits
from metainfer.sandbox import Sandbox
from metainfer.spec.names import package_name

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract
    from metainfer.ckb.routing import Routing


class UnitJudge:
    """Judges files of code for the contracts of one engine, one at a time."""

    def __init__(
        self, inputs: EngineInputs, sandbox: Sandbox, kernels: Path, mypy_cache: Path | None = None, seed: int = 0
    ) -> None:
        """`kernels`: folder that keeps the kernels of the exemplars; what is judged may read it only."""
        self.inputs = inputs
        self.sandbox = sandbox
        self.seed = seed
        self._kernels = kernels
        self._mypy_cache = mypy_cache
        self._has_kernels = False
        self._kept: dict[str, WrittenUnits] = {}
        self._turn = asyncio.Semaphore(1)

    async def __call__(self, brief: Brief, code: str) -> Sequence[str]:
        """Findings about `code` for the brief's contract; empty if it holds."""
        async with self._turn:
            return await asyncio.to_thread(self.judge, brief.contract.id, code)

    def keep(self, written: WrittenUnits) -> None:
        """Let units that hold stand where there is no exemplar, when others are judged from now on."""
        if self.inputs.routing.lacks_exemplar(written.contract):
            self._kept[written.contract] = written

    def judge(self, contract: str, code: str) -> list[str]:
        """The same, waiting: assembly, then the static rules, then the contract's checks on fresh inputs."""
        written = WrittenUnits(contract, code if code.endswith("\n") else f"{code}\n", "agents")
        try:
            if unknown := undefined_names(code):
                return [f"{name}; the file must import or define all that it uses" for name in unknown]
            others = [kept for kept in self._kept.values() if kept.contract != contract]
            engine = generate(self.inputs, [*others, written], scaffold=True)
        except (AssemblyError, FoldError) as error:
            return [str(error).replace(written.path, "the file")]
        except (RecursionError, MemoryError):
            return ["the file nests too deeply to be read"]
        with tempfile.TemporaryDirectory(prefix="metainfer-units-") as scratch:
            folder = Path(scratch, self.inputs.name)
            engine.write(folder)
            # The scaffold nearly fills an engine; what takes its place may be shorter, so the whole alone is measured.
            report = static_gate(folder, self.sandbox, mypy_cache=self._mypy_cache, max_lines=None)
            if report.passed:
                report = self._check(folder, contract)
            return list(_in_words(report, folder, package_name(self.inputs.name)))

    def _check(self, engine: Path, contract: str) -> GateReport:
        routing = self.inputs.routing
        builders = {routing.by_unit[unit].id for unit in ("load_kernels", "Linear", "paged_attention")}
        reviewed = not any(map(routing.lacks_exemplar, builders))
        if reviewed:
            self._build_kernels()
        makes_kernels = routing.by_unit["load_kernels"].id == contract
        return unit_gate(
            engine,
            self.inputs.ckb_root,
            self.sandbox,
            seed=self.seed,
            kernels=self._kernels if reviewed and not makes_kernels else None,
            sealed=True,
            only=[contract],
        )

    def _build_kernels(self) -> None:
        """Once, by the exemplars, which are reviewed: everybody's checks use what they build."""
        if self._has_kernels:
            return
        with tempfile.TemporaryDirectory(prefix="metainfer-units-") as scratch:
            folder = Path(scratch, self.inputs.name)
            generate(self.inputs, scaffold=True).write(folder)
            attention = self.inputs.routing.by_unit["paged_attention"].id
            report = unit_gate(folder, self.inputs.ckb_root, self.sandbox, kernels=self._kernels, only=[attention])
        if not report.passed:
            raise MachineError(f"the exemplars do not pass their own checks here: {report.findings[:1]}")
        self._has_kernels = True


def _in_words(report: GateReport, folder: Path, package: str) -> Iterator[str]:
    """Findings for who wrote the code: the line instead of its number, for the assembled file has other lines."""
    for finding in report.findings:
        file, _, line = finding.where.rpartition(":")
        figures = ", ".join(f"{name} {value}" for name, value in finding.figures.items())
        words = f"{finding.message} ({figures})" if figures else finding.message
        if file.startswith(f"{package}/") and line.isdigit():
            lines = (folder / file).read_text("utf-8").splitlines()
            if 0 < int(line) <= len(lines):
                words = f"{words}: `{lines[int(line) - 1].strip()}`"
        yield words
    if not report.passed and not report.findings:
        yield f"the {report.gate} gate could not judge it"


def contracts_to_write(inputs: EngineInputs, only: Sequence[str]) -> list[str]:
    """Ids of the contracts whose units an agent is to write, in the order of the engine's modules."""
    in_order = list(dict.fromkeys(inputs.routing.by_unit[unit].id for unit in UNIT_MODULES))
    return [contract for contract in in_order if not only or contract in only]


def waves(routing: Routing, contracts: Sequence[str]) -> list[list[str]]:
    """Contracts in groups that can be written side by side, each after those that its judgement needs.

    Contracts without an exemplar come first, module by module and within one by what they require: nothing else can
    stand in for them. All others make the last group.
    """
    lacking = [contract for contract in contracts if routing.lacks_exemplar(contract)]
    place = {contract.id: (_module_index(contract), _depth(routing, contract)) for contract in routing.contracts}
    groups = [[one for one in lacking if place[one] == at] for at in sorted({place[one] for one in lacking})]
    rest = [contract for contract in contracts if contract not in lacking]
    return [*groups, rest] if rest else groups


def _module_index(contract: Contract) -> int:
    modules = list(dict.fromkeys(UNIT_MODULES.values()))
    return max(
        (modules.index(UNIT_MODULES[unit.name]) for unit in contract.units if unit.name in UNIT_MODULES), default=0
    )


def _depth(routing: Routing, contract: Contract) -> int:
    needed = [other for other in routing.contracts if other.id in contract.requires]
    return 1 + max((_depth(routing, other) for other in needed), default=0)
