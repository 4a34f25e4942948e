"""The audit as a command: consistency first, then every check on its exemplars and its mutants."""

from __future__ import annotations

import functools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from metainfer.ckb.store import KnowledgeBase


def run_audit(root: Path) -> int:
    """Print every problem, and return how many there are."""
    from metainfer.ckb.mutants import MutantRunner, default_deployments
    from metainfer.ckb.store import KnowledgeBase
    from metainfer.generate.audit_engines import ScratchEngines

    knowledge = KnowledgeBase.load(root)
    inconsistent = print_inconsistencies(knowledge)
    unnoticed = 0
    with (
        tempfile.TemporaryDirectory(prefix="metainfer-audit-") as work,
        MutantRunner(knowledge, ScratchEngines(root), Path(work)) as runner,
        ThreadPoolExecutor(runner.workers) as pool,
    ):
        for contract in (c for c in knowledge.contracts.values() if c.units):
            for where in default_deployments():
                if not contract.predicate(where.facts.model_dump()):
                    continue
                for finding in runner.unchanged(contract, where).findings:
                    typer.echo(f"{contract.id}: exemplar fails {finding.check} ({where.name}): {finding.message}")
                    unnoticed += 1
            results = list(pool.map(functools.partial(runner.mutant, contract), contract.mutants))
            missed = [result.mutant for result in results if not result.noticed]
            typer.echo(f"{contract.id}: {len(results) - len(missed)} of {len(results)} mutants noticed")
            for name in missed:
                typer.echo(f"{contract.id}: mutant {name} is not noticed")
            unnoticed += len(missed)
    return inconsistent + unnoticed


def print_inconsistencies(knowledge: KnowledgeBase) -> int:
    """Print what is wrong between files that are right in themselves, and return how many there are. Runs no check."""
    from metainfer.ckb.audit import audit
    from metainfer.generate.blueprint import NEEDED_UNITS

    problems = audit(knowledge, NEEDED_UNITS)
    for problem in problems:
        typer.echo(f"{problem.contract}: {problem.kind}: {problem.message}")
    return len(problems)
