"""An engine as people name it: `NAME`, `engines/NAME`, `engines/NAME/`, or any folder that holds one."""

from __future__ import annotations

from pathlib import Path

import typer

from metainfer.commands.context import Workspace
from metainfer.errors import InputError, MetainferError


def engine_name(given: str | Path) -> str:
    """NAME, from each way of writing it: completion by the shell gives `engines/NAME/`."""
    path = Path(given)
    return path.name if path.parent.name == "engines" else str(path)


def find_engine(given: Path) -> Path:
    """A folder as given, or the engine of that name: in the work tree, else as last merged on the forge.

    Where the forge has merged another engine of that name than the work tree holds, standard error says so.
    """
    if _holds_engine(given):
        _tell_of_another(given)
        return given
    workspace = Workspace.find()
    name = engine_name(given)
    if "/" in name:
        raise InputError(f"{given}: no manifest.json there; give an engine's folder, or its name under engines/")
    named = workspace.engine_dir(name)
    if _holds_engine(named):
        _tell_of_another(named)
        return named
    from metainfer.pipeline.checkout import checkout_engine

    return checkout_engine(workspace.root, workspace.state, name)


def _holds_engine(folder: Path) -> bool:
    return (folder / "manifest.json").is_file()


def _tell_of_another(folder: Path) -> None:
    from metainfer.pipeline.checkout import way_to_merged

    try:
        workspace = Workspace.find()
        name = folder.resolve().name
        if folder.resolve() != workspace.engine_dir(name):
            return  # a copy somewhere else: nobody takes that for the merged one
        way = way_to_merged(workspace.root, workspace.state, name)
    except MetainferError:
        return  # no repository, or no forge that can be asked: there is no other engine to confuse it with
    if way:
        typer.echo(
            f"note: using {folder} of this work tree; the forge has merged another, to get that: {way}", err=True
        )
