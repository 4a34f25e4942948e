"""Whose fault is a red gate? Units that held alone may break the whole; each is tried with its exemplar instead."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.generate.assemble import AssemblyError
from metainfer.generate.manifest import AgentRecord
from metainfer.generate.specializer import GeneratedEngine, generate
from metainfer.generate.written import WrittenUnits

if TYPE_CHECKING:
    from metainfer.gates.report import GateReport
    from metainfer.generate.inputs import EngineInputs

Rerun = Callable[[Path, str], "GateReport"]
"""Runs one gate, by name, on an engine's folder."""


@dataclass(frozen=True)
class Candidate:
    """An engine and what in it was written, by a model or by others."""

    engine: GeneratedEngine
    written: tuple[WrittenUnits, ...] = ()
    agent: AgentRecord | None = None

    def without(self, contracts: Sequence[str], inputs: EngineInputs) -> Candidate:
        """The same with the exemplars of contracts whose units a model wrote, and the record saying so."""
        kept = tuple(own for own in self.written if own.contract not in contracts)
        agent = self.agent
        for contract in contracts:
            agent = agent and agent.without(contract)
        return Candidate(generate(inputs, kept, agent=agent), kept, agent)


def assemble_what_fits(
    inputs: EngineInputs, submitted: Sequence[WrittenUnits], made: Sequence[WrittenUnits], agent: AgentRecord
) -> Candidate:
    """The engine with everything that was written and fits together; of two that clash the later one falls back.

    Files that were judged one by one may define the same private name. Raises AssemblyError where what was submitted,
    or has no exemplar, clashes.
    """
    taken = {own.contract for own in submitted}
    needed = [own for own in made if inputs.routing.lacks_exemplar(own.contract) and own.contract not in taken]
    first = (*submitted, *needed)
    taken |= {own.contract for own in needed}
    candidate = Candidate(generate(inputs, first, agent=agent), first, agent)
    for own in made:
        if own.contract in taken:
            continue
        written = (*candidate.written, own)
        try:
            candidate = Candidate(generate(inputs, written, agent=candidate.agent), written, candidate.agent)
        except AssemblyError:
            candidate = replace(candidate, written=written).without([own.contract], inputs)
    return candidate


def find_culprits(candidate: Candidate, inputs: EngineInputs, red: GateReport, rerun: Rerun) -> tuple[str, ...]:
    """Contracts written by a model whose exemplars, in their places, turn the gate green; empty if there are none.

    One by itself is looked for first, beginning with those that the gate's findings name. If there is none, but the
    gate is green without all of them, they are put back one by one: what is left breaks the engine.
    """
    contracts = [
        own.contract
        for own in candidate.written
        if own.backend == "agents" and not inputs.routing.lacks_exemplar(own.contract)
    ]
    named = _named(candidate.engine, inputs, red)
    contracts.sort(key=lambda contract: contract not in named)

    def is_green_without(gone: Sequence[str]) -> bool:
        with tempfile.TemporaryDirectory(prefix="metainfer-blame-") as scratch:
            folder = Path(scratch, inputs.name)
            candidate.without(gone, inputs).engine.write(folder)
            return rerun(folder, red.gate).passed

    for contract in contracts:
        if is_green_without([contract]):
            return (contract,)
    if len(contracts) < 2 or not is_green_without(contracts):
        return ()
    culprits = contracts
    for contract in reversed(contracts):
        fewer = [other for other in culprits if other != contract]
        if len(fewer) > 1 and is_green_without(fewer):
            culprits = fewer
    return tuple(culprits)


def _named(engine: GeneratedEngine, inputs: EngineInputs, red: GateReport) -> set[str]:
    """Contracts that findings name, by id or by a line within one of their units."""
    found = {finding.where for finding in red.findings}
    for finding in red.findings:
        file, _, line = finding.where.rpartition(":")
        if file in engine.files and file.endswith(".py") and line.isdigit():
            unit = _definition_at(engine.files[file].decode(), int(line))
            contract = inputs.routing.by_unit.get(unit)
            found |= {contract.id} if contract else set()
    return found


def _definition_at(text: str, line: int) -> str:
    """Name of the function or class at the top of a module that a line belongs to; empty if it belongs to none."""
    for node in ast.parse(text).body:
        named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if named and node.lineno <= line <= (node.end_lineno or node.lineno):
            return str(getattr(node, "name", ""))
    return ""
