"""`metainfer runs`: what earlier runs did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metainfer.commands.context import Workspace
from metainfer.console import one_line, printable
from metainfer.errors import ExitCode, InputError

if TYPE_CHECKING:
    from metainfer.pipeline.conversations import Conversations
    from metainfer.pipeline.record import RunRecord

RunArgument = Annotated[str, typer.Argument(help="Identifier, its beginning, or the folder of a run.")]
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
        typer.echo(f"{record.id}  {record.state:<10}{pull}  {one_line(record.message)}")


@app.command()
def show(
    run_id: RunArgument,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object.")] = False,
) -> None:
    """Show the steps of one run, with their times, and what a model did in it: by role, and call by call."""
    workspace = Workspace.find()
    folder, record = _find(workspace, run_id)
    said = _conversations(workspace, folder, record)
    if as_json:
        data = record.model_dump(mode="json") | {"model": said.model_dump(mode="json") if said else None}
        typer.echo(json.dumps(data, ensure_ascii=False))
        return
    typer.echo(f"{record.id}\nengine {record.engine}, inputs {record.input_hash[:12]}, base {record.base[:12]}")
    for step in record.steps:
        typer.echo(f"  {step.state:<8}{step.seconds:8.1f} s  {step.name}  {printable(step.message)}".rstrip())
    typer.echo(f"{record.state}: {printable(record.message)}")
    if said:
        from metainfer.pipeline.conversations import told

        for line in told(said):
            typer.echo(printable(line))


def replay(run_id: RunArgument) -> None:
    """Rebuild a run's engine from what its model said, offline, and compare every byte. Exit code 1 if any differs."""
    from metainfer.forge.setup import open_forge
    from metainfer.pipeline.knowledge import export_knowledge
    from metainfer.pipeline.replay import replay as rebuild

    workspace = Workspace.find()
    folder, record = _find(workspace, run_id)
    ckb = export_knowledge(open_forge(workspace.root), record.base, workspace.state)
    complaints = rebuild(folder, record.engine, ckb)
    for complaint in complaints:
        typer.echo(f"{folder / record.engine}/{complaint}")
    if complaints:
        raise typer.Exit(ExitCode.RED)
    typer.echo(f"{folder / record.engine}: every byte follows from the transcript")


def _find(workspace: Workspace, run_id: str) -> tuple[Path, RunRecord]:
    """The folder of a run, and its record."""
    from metainfer.pipeline.record import list_runs, read_record

    if (Path(run_id) / "record.json").is_file():
        return Path(run_id), read_record(Path(run_id))
    found = [record for record in list_runs(workspace.state) if record.id.startswith(run_id)]
    if len(found) != 1:
        raise InputError(f"{len(found)} runs begin with {run_id!r}; see `metainfer runs list`")
    return workspace.state / "runs" / found[0].id, found[0]


def _conversations(workspace: Workspace, folder: Path, record: RunRecord) -> Conversations | None:
    """What the run's model did; None if none took part."""
    from metainfer.pipeline.conversations import read_conversations

    transcript = folder / "transcript.jsonl"
    ledger = folder / "ledger.jsonl"  # of a run in rounds
    if not ledger.exists():
        ledger = workspace.state / "agents" / "ledgers" / f"{record.input_hash}.jsonl"
    return read_conversations(transcript, ledger) if transcript.exists() else None
