"""`metainfer ci ckb-review`, `comment`, `dashboard`: what workflows say to people, and hear from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metainfer.commands.context import Workspace
from metainfer.errors import ExitCode, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metainfer.forge.github.forge import GitHubForge
    from metainfer.forge.protocol import Forge
    from metainfer.review.check import Checked
    from metainfer.review.event import Group

ForgeOption = Annotated[str | None, typer.Option("--forge", help="A bare repository, or github:OWNER/NAME.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `metainfer ci`."""
    app.command("ckb-review")(ckb_review)
    app.command("comment")(comment)
    app.command("dashboard")(dashboard)


def ckb_review(
    number: Annotated[int | None, typer.Argument(help="The pull request; default: as the event says.", min=1)] = None,
    every: Annotated[bool, typer.Option("--all", help="Every open pull request.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say the verdict here only.")] = False,
    forge: ForgeOption = None,
) -> None:
    """Judge whether an owner of ckb/ approved exactly this head, and set the status ckb-review.

    On GitHub the status holds the verdict, and the exit code is 0 when it was set; elsewhere, or with --dry-run, 1
    means not passed.
    """
    from metainfer.forge.github.forge import GitHubForge
    from metainfer.forge.local import LocalForge
    from metainfer.review.check import check_local

    opened = _forge(forge)
    if isinstance(opened, LocalForge):
        if number is None:
            raise InputError("name a pull request: metainfer ci ckb-review N")
        _tell([check_local(opened, number)], judging=True)
    elif isinstance(opened, GitHubForge):
        numbers, group = _asked(opened, number, every=every)
        _tell(_judge(opened, numbers, group, dry_run=dry_run), judging=dry_run)
    else:
        raise InputError(f"{opened.address()}: this kind of forge has no reviews of knowledge")


def comment(
    number: Annotated[int | None, typer.Argument(help="The pull request; default: as the event says.", min=1)] = None,
    comment_id: Annotated[int | None, typer.Argument(help="The comment's id.", min=1)] = None,
    forge: ForgeOption = None,
) -> None:
    """Obey a `/metainfer …` comment: answer it, and start generate.yml where it asks for an engine.

    Allowed for accounts that may write, by what GitHub says of them now. Outputs: action (regenerate, retry or
    nothing), engine, spec, base, number.
    """
    from metainfer.ci.actions import add_summary, set_outputs
    from metainfer.forge.github.forge import GitHubForge
    from metainfer.review.answer import Answer, answer, carry_out, find_remark
    from metainfer.review.event import Event

    if (number is None) is not (comment_id is None):
        raise InputError("give the pull request and the comment's id, or neither")
    opened = _forge(forge)
    if not isinstance(opened, GitHubForge):
        raise InputError(f"{opened.address()} is not on GitHub; comments are answered there")
    remark = find_remark(opened, number, comment_id) if number and comment_id else Event.read().remark()
    given = answer(opened, remark, Workspace.find().state) if remark else Answer()
    if remark and not carry_out(opened, remark.number, given) and given.said:
        _say("this comment was answered before")
    about = str(remark.number) if remark and given.action else ""
    set_outputs(
        {"action": given.action, "engine": given.engine, "spec": given.spec, "base": given.base, "number": about}
    )
    add_summary(given.said or "No command for metainfer in this comment.")
    _say(given.said or "no command for metainfer in this comment")


def dashboard(
    outcome: Annotated[
        str, typer.Option(help="How the run went so far: success, failure or cancelled, as `job.status` says.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print it; write nothing.")] = False,
    forge: ForgeOption = None,
) -> None:
    """Keep the one issue current that says how engines, runs and reviews stand."""
    from datetime import UTC, datetime

    from metainfer.ci.actions import set_outputs
    from metainfer.forge.github.forge import GitHubForge
    from metainfer.review.dashboard.gather import gather
    from metainfer.review.dashboard.issue import Dashboard
    from metainfer.review.dashboard.render import render
    from metainfer.review.event import run_url

    opened = _forge(forge)
    if not isinstance(opened, GitHubForge):
        raise InputError(f"{opened.address()} is not on GitHub; the dashboard is an issue there")
    now = datetime.now(UTC)
    body = render(gather(opened, outcome=outcome, run_url=run_url()), now)
    if dry_run:
        _say(body)
        return
    kept = Dashboard(opened.connection).keep(body, now)
    set_outputs({"done": kept.done, "number": str(kept.number)})
    _say(f"dashboard #{kept.number}: {kept.done}")


def _judge(opened: GitHubForge, numbers: Sequence[int], group: Group | None, *, dry_run: bool) -> list[Checked]:
    """One that cannot be judged is told, and does not keep the others from it.

    What GitHub refused of one (a conversation that is locked, say) is raised once all others were judged.
    """
    from metainfer.errors import ConflictError, RefusedError
    from metainfer.review.check import check_github, report_github, report_group
    from metainfer.review.event import run_url
    from metainfer.review.people import People

    if group is not None:
        return [report_group(opened, group.number, group.commit, run_url())]
    found = []
    refusal: RefusedError | None = None
    for number in numbers:
        try:
            if dry_run:
                found.append(check_github(opened, number, People.of(opened.connection)))
            else:
                found.append(report_github(opened, number, run_url()))
        except (InputError, ConflictError) as error:
            if len(numbers) == 1 and dry_run:
                raise
            _say(f"#{number}: {error}")
        except RefusedError as error:
            refusal = refusal or error
            _say(f"#{number}: {error}")
    if refusal is not None:
        raise refusal
    return found


def _asked(opened: GitHubForge, number: int | None, *, every: bool) -> tuple[Sequence[int], Group | None]:
    from metainfer.review.check import open_numbers
    from metainfer.review.event import Event

    if number is not None:
        return [number], None
    if every:
        return open_numbers(opened), None
    event = Event.read()
    group = event.group()
    if group is not None:
        return [], group
    about = event.pull_number()
    return ([about] if about is not None else open_numbers(opened)), None


def _tell(checked: Sequence[Checked], *, judging: bool) -> None:
    from metainfer.ci.actions import add_summary, set_outputs
    from metainfer.review.report import plain, render
    from metainfer.review.verdict import State

    for one in checked:
        _say(f"#{one.number} at {one.head[:12]}: " + "\n".join(plain(one.change, one.verdict)))
        add_summary(f"## #{one.number}\n\n{render(one.change, one.verdict, one.head)}")
    if len(checked) == 1:
        set_outputs({"state": checked[0].verdict.state, "number": str(checked[0].number)})
    failed = any(one.verdict.state is not State.SUCCESS for one in checked)
    raise typer.Exit(ExitCode.RED if judging and failed else ExitCode.OK)


def _forge(override: str | None) -> Forge:
    from metainfer.forge.setup import open_forge

    return open_forge(_root(), override)


def _root() -> Path:
    return Workspace.find().root


def _say(text: str) -> None:
    from metainfer.ci.actions import say

    say(text)
