"""`metainfer runs`: what earlier runs did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metainfer.commands.context import Workspace
from metainfer.errors import ExitCode, InputError

if TYPE_CHECKING:
    from metainfer.pipeline.record import RunRecord

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
    """Show the steps of one run, with their times, and what a model did in it."""
    workspace = Workspace.find()
    record = _find(workspace, run_id)
    typer.echo(f"{record.id}\nengine {record.engine}, inputs {record.input_hash[:12]}, base {record.base[:12]}")
    for step in record.steps:
        typer.echo(f"  {step.state:<8}{step.seconds:8.1f} s  {step.name}  {step.message}".rstrip())
    typer.echo(f"{record.state}: {record.message}")
    transcript = workspace.state / "runs" / record.id / "transcript.jsonl"
    if transcript.exists():
        for line in _conversation(transcript):
            typer.echo(line)


def replay(run_id: Annotated[str, typer.Argument(help="Identifier, or its beginning.")]) -> None:
    """Rebuild a run's engine from what its model said, offline, and compare every byte. Exit code 1 if any differs."""
    from metainfer.forge.setup import open_forge
    from metainfer.pipeline.knowledge import export_knowledge
    from metainfer.pipeline.replay import replay as rebuild

    workspace = Workspace.find()
    record = _find(workspace, run_id)
    folder = workspace.state / "runs" / record.id
    ckb = export_knowledge(open_forge(workspace.root), record.base, workspace.state)
    complaints = rebuild(folder, record.engine, ckb)
    for complaint in complaints:
        typer.echo(f"{folder / record.engine}/{complaint}")
    if complaints:
        raise typer.Exit(ExitCode.RED)
    typer.echo(f"{folder / record.engine}: every byte follows from the transcript")


def _find(workspace: Workspace, run_id: str) -> RunRecord:
    from metainfer.pipeline.record import list_runs

    found = [record for record in list_runs(workspace.state) if record.id.startswith(run_id)]
    if len(found) != 1:
        raise InputError(f"{len(found)} runs begin with {run_id!r}; see `metainfer runs list`")
    return found[0]


def _conversation(transcript: Path) -> Iterator[str]:
    """A line per call, then the sum."""
    from metainfer.agents.transcript import read_transcript

    calls, tokens, seconds = 0, 0, 0.0
    for turn in read_transcript(transcript):
        usage = turn.reply.usage.total if turn.reply else 0
        said = "kept from earlier" if turn.from_store else turn.error[:80] or (turn.reply and turn.reply.finish_reason)
        yield (
            f"  {turn.purpose.role} {turn.purpose.subject} round {turn.purpose.round} sample {turn.request.sample}: "
            f"{usage:,} tokens, {turn.seconds:.1f} s, {said}"
        )
        calls, tokens, seconds = calls + 1, tokens + usage, seconds + turn.seconds
    yield f"  {calls} calls, {tokens:,} tokens, {seconds:.0f} s of waiting"
