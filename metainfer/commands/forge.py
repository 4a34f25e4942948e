"""`metainfer forge`: where pull requests live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metainfer.commands.context import Workspace

app = typer.Typer(no_args_is_help=True, help="Make and inspect the place where pull requests live.")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to make the bare repository.")],
    owner: Annotated[
        str | None, typer.Option(help="Code owner of everything in it, by e-mail; default: as CODEOWNERS says.")
    ] = None,
) -> None:
    """Make a local forge from what is checked out here, and use it from now on."""
    from metainfer.forge.identity import git_config
    from metainfer.forge.setup import CONFIG_KEY, create_local_forge

    workspace = Workspace.find()
    before = git_config(workspace.root, CONFIG_KEY)
    create_local_forge(workspace.root, folder, owner)
    typer.echo(f"local forge at {folder}; `git config metainfer.forge` of {workspace.root} points there")
    if before:
        typer.echo(f"until now it was {before}; --forge reaches that, git config {CONFIG_KEY} goes back to it")
    typer.echo("next: metainfer run specs/<name>.yaml")
