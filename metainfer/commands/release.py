"""`metainfer release`: tag the engine that is on the base branch."""

from __future__ import annotations

from typing import Annotated

import typer

from metainfer.commands.context import Workspace
from metainfer.commands.named import engine_name
from metainfer.commands.pr import AsOption, ForgeOption


def release(
    engine: Annotated[str, typer.Argument(help="The engine's name, or engines/NAME.")],
    version: Annotated[str | None, typer.Option(help="X.Y.Z; default: the next one, by what changed.")] = None,
    forge: ForgeOption = None,
    as_: AsOption = None,
) -> None:
    """Tag the merged engine as <engine>/vX.Y.Z. Refused when its evidence is missing, red, or for another tree."""
    from metainfer.forge.identity import identify
    from metainfer.forge.setup import open_forge
    from metainfer.release.tag import release as make_release

    root = Workspace.find().root
    made = make_release(open_forge(root, forge), engine_name(engine), identify(root, as_), version=version)
    typer.echo(f"{'tagged' if made.created else 'already tagged:'} {made.tag} at {made.commit[:12]}")
    for reason in made.reasons:
        typer.echo(f"  {reason.level.name.lower()}: {reason.text}")
