"""`metainfer pr`: read, review and merge what the bot proposes, on whatever forge is configured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from metainfer.commands.context import Workspace

if TYPE_CHECKING:
    from metainfer.forge.protocol import Forge, Identity, PullRequest

app = typer.Typer(no_args_is_help=True, help="List, show, review and merge the bot's pull requests.")

ForgeOption = Annotated[
    str | None,
    typer.Option("--forge", help="A bare repository, or github:OWNER/NAME; default: `git config metainfer.forge`."),
]
AsOption = Annotated[
    str | None, typer.Option("--as", help="Who acts, as 'Name <e-mail>'; default: Git's user.name and user.email.")
]
Number = Annotated[int, typer.Argument(help="Number of the pull request.", min=1)]


@app.command("list")
def list_pulls(
    state: Annotated[str, typer.Option(help="open, closed, merged or all.")] = "open", forge: ForgeOption = None
) -> None:
    """List pull requests."""
    pulls = _open(forge).list(_state(state))
    if not pulls:
        typer.echo(f"no {state} pull requests" if state != "all" else "no pull requests")
    for pull in pulls:
        typer.echo(f"#{pull.number:<4} {pull.state:<7} {pull.engine:<32} {pull.title}")


@app.command()
def show(number: Number, forge: ForgeOption = None) -> None:
    """Show a pull request: verdict, evidence, comments, approvals, and what stands in the way of a merge."""
    from rich.console import Console
    from rich.markdown import Markdown

    opened = _open(forge)
    pull = opened.get(number)
    # What people write is shown as they wrote it: brackets are no markup.
    console = Console(markup=False, highlight=False)
    console.print(f"#{pull.number} {pull.title}", style="bold")
    labels = f" · {', '.join(pull.labels)}" if pull.labels else ""
    console.print(f"{pull.state} · {pull.branch} → {pull.base} · head {pull.head[:12]}{labels}")
    console.print(Markdown(pull.body))
    for comment in pull.comments:
        console.print(f"{comment.by} {comment.at}", style="bold")
        console.print(comment.text)
    for review in pull.reviews:
        console.print(f"approved by {review.name} <{review.by}> at {review.head[:12]}", style="green")
    if pull.state == "open":
        for blocker in opened.merge_blockers(number) or ["nothing: ready to merge"]:
            console.print(f"in the way: {blocker}")


@app.command()
def diff(number: Number, forge: ForgeOption = None) -> None:
    """Print the unified diff."""
    typer.echo(_open(forge).diff(number), nl=False)


@app.command()
def checkout(
    number: Number,
    out: Annotated[
        Path | None, typer.Option(help="Where to; default: .metainfer/pulls/N/<engine> of the repository.")
    ] = None,
    forge: ForgeOption = None,
) -> None:
    """Write the engine's folder, to verify, judge or serve it before it is merged, and print where it is."""
    from metainfer.pipeline.checkout import checkout_pull, require_replaceable

    opened = _open(forge)
    pull = opened.get(number)
    if out:
        require_replaceable(out)
    folder = out or Workspace.find().state / "pulls" / str(number) / pull.engine
    checkout_pull(opened, pull, folder)
    typer.echo(folder)
    typer.echo(f"next: metainfer verify {folder}", err=True)


@app.command()
def approve(
    number: Number,
    head: Annotated[str | None, typer.Option(help="Approve only if this is still the head.")] = None,
    forge: ForgeOption = None,
    as_: AsOption = None,
) -> None:
    """Approve the present head. A new head needs a new approval."""
    opened = _open(forge)
    pull = opened.approve(number, _who(as_), head)
    typer.echo(f"approved #{pull.number} at {pull.head[:12]}")
    blockers = opened.merge_blockers(number)
    for blocker in blockers:
        typer.echo(f"in the way: {blocker}")
    if not blockers:
        typer.echo(f"next: metainfer pr merge {pull.number}")


@app.command()
def label(
    number: Number,
    name: Annotated[str, typer.Argument(help="metainfer/stop keeps every model from being asked for this engine.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take it off.")] = False,
    forge: ForgeOption = None,
    as_: AsOption = None,
) -> None:
    """Put a label on a pull request, or take it off."""
    pull = _open(forge).label(number, _who(as_), name, remove=remove)
    typer.echo(f"#{pull.number}: {', '.join(pull.labels) or 'no labels'}")


@app.command()
def comment(number: Number, text: str, forge: ForgeOption = None, as_: AsOption = None) -> None:
    """Add a comment."""
    pull = _open(forge).comment(number, _who(as_), text)
    typer.echo(f"commented on #{pull.number}")


@app.command()
def merge(
    number: Number,
    head: Annotated[str | None, typer.Option(help="Merge only if this is still the head.")] = None,
    forge: ForgeOption = None,
    as_: AsOption = None,
) -> None:
    """Merge the reviewed head into its base."""
    from metainfer.forge.setup import pull_command

    opened = _open(forge)
    pull = opened.get(number)
    outcome = opened.merge(number, _who(as_), head)
    typer.echo(f"merged #{number} into {outcome.base} as {outcome.commit[:12]}")
    typer.echo(f"next: {pull_command(opened, outcome.base)}\n      metainfer release {pull.engine}")


@app.command()
def close(
    number: Number,
    comment: Annotated[str | None, typer.Option(help="Why; it is kept with the pull request.")] = None,
    forge: ForgeOption = None,
    as_: AsOption = None,
) -> None:
    """Close without merging. It stays closed until the engine's inputs change."""
    pull: PullRequest = _open(forge).close(number, _who(as_), comment)
    typer.echo(f"closed #{pull.number}; `metainfer run` leaves it closed until the inputs change (or --regenerate)")


def _open(override: str | None) -> Forge:
    from metainfer.forge.setup import open_forge

    return open_forge(Workspace.find().root, override)


def _who(given: str | None) -> Identity:
    from metainfer.forge.identity import identify

    return identify(Workspace.find().root, given)


def _state(text: str) -> Literal["open", "closed", "merged", "all"]:
    match text:
        case "open" | "closed" | "merged" | "all":
            return text
    raise typer.BadParameter("state is one of open, closed, merged, all")
