"""`metainfer init`: makes a repository ready."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metainfer.errors import ExitCode, InputError

if TYPE_CHECKING:
    from metainfer.forge.pinned import Pin
    from metainfer.scaffold.repository import Knowledge


def init(
    folder: Annotated[Path, typer.Argument(help="The repository.")] = Path("."),
    ckb: Annotated[
        str | None,
        typer.Option(help="start: copy the knowledge that ships with metainfer; submodule: pin a shared one; none."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="With --ckb submodule: the shared repository.")] = None,
    ref: Annotated[str | None, typer.Option(help="With --ckb submodule: its tag, or a full commit id.")] = None,
    owner: Annotated[
        list[str] | None, typer.Option(help="Code owner: @user, @org/team or an address; repeatable.")
    ] = None,
    ckb_owner: Annotated[list[str] | None, typer.Option(help="The same, of ckb/ alone; repeatable.")] = None,
    workflows: Annotated[
        str | None,
        typer.Option(
            help="OWNER/REPO@REF of the reusable workflows, or none; default: metainfer's own, else as before."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every line of the starting knowledge too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite generated files that were edited.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
) -> None:
    """Make a repository ready: specs/, ckb/, workflows, CODEOWNERS, pre-commit. Again: nothing to do.

    Shows a diff and asks before it writes. What a person edited is kept and shown.
    """
    from metainfer.scaffold.repository import Wishes, plan_repository, require_repository
    from metainfer.scaffold.show import show

    root = require_repository(folder)
    asking = sys.stdin.isatty() and not yes
    knowledge = _knowledge(root, ckb, url, ref, asking=asking)
    wishes = Wishes(
        knowledge=knowledge,
        pin=_pin(knowledge, url, ref),
        owners=_owners(root, owner or [], ckb_owner or [], asking=asking),
        workflows=_workflows(root, workflows),
        force=force,
    )
    plan = plan_repository(root, wishes)
    for line in show(plan, whole=full):
        typer.echo(line)
    if plan.is_empty:
        typer.echo("nothing to do")
        return
    if not yes and not asking:
        typer.echo("nothing was written: look at the above, then say --yes", err=True)
        raise typer.Exit(ExitCode.RED)
    if not yes and not typer.confirm("Write this?"):
        typer.echo("nothing was written")
        return
    plan.carry_out()
    typer.echo(f"{root} is ready; commit it, then, {_next(on_github=bool(wishes.workflows))}")


def _next(*, on_github: bool) -> str:
    """What to type next. Nothing here says which repository on GitHub this will be, so a person has to."""
    if not on_github:
        return "for pull requests on this machine: metainfer forge init DIR, and metainfer run specs/NAME.yaml"
    return (
        "once it is on GitHub: git config metainfer.forge github:OWNER/NAME, and metainfer doctor --github; "
        "then open a pull request with a spec"
    )


def _knowledge(root: Path, given: str | None, url: str | None, ref: str | None, *, asking: bool) -> Knowledge | None:
    if (url or ref) and given != "submodule":
        raise InputError("--url and --ref go with --ckb submodule")
    match given:
        case "start" | "submodule" | "none":
            return given
        case None:
            if any((root / "ckb").glob("*")) or not asking:
                return None
            return "start" if typer.confirm("Copy the knowledge base that ships with metainfer?") else "none"
    raise InputError(f"--ckb {given!r}: is one of start, submodule, none")


def _pin(knowledge: Knowledge | None, url: str | None, ref: str | None) -> Pin | None:
    if knowledge != "submodule":
        return None
    if not url or not ref:
        raise InputError("--ckb submodule needs --url URL and --ref TAG (or a full commit id)")
    from metainfer.forge.pinned import resolve
    from metainfer.scaffold.submodule import require_knowledge

    pin = resolve(url, ref)
    require_knowledge(pin)
    return pin


def _owners(root: Path, everything: Sequence[str], ckb: Sequence[str], *, asking: bool) -> Mapping[str, Sequence[str]]:
    from metainfer.scaffold.owners import FOLDERS, check_owner, unowned

    if not everything and asking and unowned(root):
        answer = typer.prompt("Who owns what is unowned so far (@user, @org/team or an address)?")
        everything = [check_owner(word) for word in str(answer).split()]
    given = dict.fromkeys(FOLDERS, tuple(everything)) if everything else {}
    return given | ({"ckb": tuple(ckb)} if ckb else {})


def _workflows(root: Path, given: str | None) -> Mapping[str, bytes]:
    if given == "none":
        return {}
    from metainfer.forge.github.address import PUBLIC_SERVER, SERVER_VARIABLES
    from metainfer.scaffold.plan import read_record
    from metainfer.scaffold.workflows import FOLDER, callers, find_source, pinned_in

    server = next((os.environ[name] for name in SERVER_VARIABLES if os.environ.get(name)), PUBLIC_SERVER)
    before = read_record(root)
    if given is None and before and not any(path.startswith(f"{FOLDER}/") for path in before):
        return {}  # made ready without workflows: they are added when somebody asks for them
    return callers(find_source(given, server=server, pinned=pinned_in(root)))
