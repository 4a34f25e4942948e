"""`metainfer ckb`: validate, route and audit knowledge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metainfer.errors import ExitCode

app = typer.Typer(no_args_is_help=True, help="Validate, route and audit the contract knowledge base.")

Root = Annotated[Path, typer.Option("--root", help="The knowledge base.")]


@app.command()
def check(root: Root = Path("ckb")) -> None:
    """Validate every contract, predicate and reference, alone and together.

    Exit code 2 for a broken file, 1 for an inconsistency between files.
    """
    from metainfer.ckb.audit import unproven
    from metainfer.ckb.store import KnowledgeBase
    from metainfer.commands.audit import print_inconsistencies

    knowledge = KnowledgeBase.load(root)
    if print_inconsistencies(knowledge):
        raise typer.Exit(ExitCode.RED)
    for name in unproven(knowledge):
        typer.echo(f"{name}: has no exemplar; its units must be written, and its checks are not proven by mutants")
    typer.echo(f"{len(knowledge.contracts)} contracts are consistent")


@app.command()
def audit(root: Root = Path("ckb")) -> None:
    """Check consistency, and that every contract's check passes its exemplars and kills its mutants. Takes minutes."""
    from metainfer.commands.audit import run_audit

    raise typer.Exit(ExitCode.RED if run_audit(root) else ExitCode.OK)
