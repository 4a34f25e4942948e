"""`metainfer runs`: what earlier runs did."""

from __future__ import annotations

from typing import Annotated

import typer

from metainfer.commands.context import Workspace
from metainfer.errors import InputError

app = typer.Typer(no_args_is_help=True, help="List and show earlier runs.")


@app.command("list")
def list_runs() -> None:
    """List runs, newest first."""
    from metainfer.pipeline.record import list_runs

    records = list_runs(Workspace.find().state)
    if not records:
        typer.echo("no runs yet; `metainfer run SPEC` makes one")
    for record in records:
        pull = f" PR #{record.pull_request}" if record.pull_request else ""
        typer.echo(f"{record.id}  {record.state:<10}{pull}  {record.message}")


@app.command()
def show(run_id: Annotated[str, typer.Argument(help="Identifier, or its beginning.")]) -> None:
    """Show the steps of one run, with their times."""
    from metainfer.pipeline.record import list_runs

    found = [record for record in list_runs(Workspace.find().state) if record.id.startswith(run_id)]
    if len(found) != 1:
        raise InputError(f"{len(found)} runs begin with {run_id!r}; see `metainfer runs list`")
    record = found[0]
    typer.echo(f"{record.id}\nengine {record.engine}, inputs {record.input_hash[:12]}, base {record.base[:12]}")
    for step in record.steps:
        typer.echo(f"  {step.state:<8}{step.seconds:8.1f} s  {step.name}  {step.message}".rstrip())
    typer.echo(f"{record.state}: {record.message}")
