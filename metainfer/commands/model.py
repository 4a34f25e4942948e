"""`metainfer model`: the model folder of a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from metainfer.commands.context import cache_root
from metainfer.commands.run import SpecPath
from metainfer.console import make_reporter

if TYPE_CHECKING:
    from metainfer.checkpoint.sources import ModelFolder

app = typer.Typer(no_args_is_help=True, help="Fetch and inspect a spec's model.")


@app.command()
def fetch(spec: SpecPath) -> None:
    """Download and convert the model into the cache, and print its folder."""
    folder = _fetch(spec)
    typer.echo(f"{folder.digest}\n{folder.path}")


@app.command()
def facts(spec: SpecPath) -> None:
    """Print the facts read from the checkpoint, and the memory that the deployment needs."""
    from metainfer.checkpoint.feasibility import feasibility
    from metainfer.spec.load import load_spec

    folder = _fetch(spec)
    typer.echo(folder.facts.model_dump_json(indent=2))
    typer.echo(str(feasibility(load_spec(spec), folder.facts)))


def _fetch(spec: SpecPath) -> ModelFolder:
    from metainfer.checkpoint.sources import fetch_model
    from metainfer.spec.load import load_spec

    with make_reporter(as_json=False) as reporter:
        return fetch_model(
            load_spec(spec).model.source,
            cache=cache_root(),
            base_dir=spec.parent,
            progress=reporter,
            spec_path=spec,
        )
