"""`metainfer spec`: validate specs, write their schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metainfer.errors import ExitCode

app = typer.Typer(no_args_is_help=True, help="Validate specs and write their JSON Schema.")


@app.command()
def check(files: Annotated[list[Path], typer.Argument(help="Spec files.")]) -> None:
    """Validate specs; every error names file, line and column. Exit code 2 if there is one."""
    from metainfer.spec.document import DocumentError
    from metainfer.spec.load import load_named_spec

    wrong = False
    for file in files:
        try:
            spec = load_named_spec(file)
        except DocumentError as error:
            typer.echo(str(error), err=True)
            wrong = True
        else:
            work = f"{spec.workload.max_concurrency} × {spec.workload.max_model_len:,} tokens"
            typer.echo(f"{file}: ok, {spec.target.platform}, {work}")
    raise typer.Exit(ExitCode.BAD_INPUT if wrong else ExitCode.OK)


@app.command()
def schema(out: Annotated[Path, typer.Option(help="Where to write it.")] = Path("specs/schema.json")) -> None:
    """Write the JSON Schema of specs."""
    from metainfer.files import write_atomic
    from metainfer.spec.schema import schema_bytes

    write_atomic(out, schema_bytes())
    typer.echo(f"wrote {out}")
