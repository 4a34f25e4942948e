"""The audit as a command: consistency first, then every check on its exemplars and its mutants."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer


def run_audit(root: Path) -> int:
    """Print every problem, and return how many there are."""
    from metainfer.ckb.audit import audit
    from metainfer.ckb.mutants import MutantRunner, default_deployments
    from metainfer.ckb.store import KnowledgeBase
    from metainfer.generate.audit_engines import ScratchEngines
    from metainfer.generate.blueprint import NEEDED_UNITS

    knowledge = KnowledgeBase.load(root)
    problems = audit(knowledge, NEEDED_UNITS)
    for problem in problems:
        typer.echo(f"{problem.contract}: {problem.kind}: {problem.message}")
    unnoticed = 0
    with (
        tempfile.TemporaryDirectory(prefix="metainfer-audit-") as work,
        MutantRunner(knowledge, ScratchEngines(root), Path(work)) as runner,
    ):
        for contract in (c for c in knowledge.contracts.values() if c.units):
            for where in default_deployments():
                if not contract.predicate(where.facts.model_dump()):
                    continue
                for finding in runner.unchanged(contract, where).findings:
                    typer.echo(f"{contract.id}: exemplar fails {finding.check} ({where.name}): {finding.message}")
                    unnoticed += 1
            results = [runner.mutant(contract, mutant) for mutant in contract.mutants]
            missed = [result.mutant for result in results if not result.noticed]
            typer.echo(f"{contract.id}: {len(results) - len(missed)} of {len(results)} mutants noticed")
            for name in missed:
                typer.echo(f"{contract.id}: mutant {name} is not noticed")
            unnoticed += len(missed)
    return len(problems) + unnoticed
