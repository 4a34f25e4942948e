"""Engines for a pull request that is not merged yet: stacked on its branch, where somebody who may write asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.errors import RefusedError
from metainfer.forge.github.conversation import Conversation
from metainfer.forge.protocol import DEFAULT_BASE
from metainfer.review.event import sibling

if TYPE_CHECKING:
    from metainfer.forge.github.connect import Connection
    from metainfer.forge.protocol import Forge

LABEL = "generate"
WORKFLOW = "generate.yml"
_WRITERS = frozenset({"admin", "maintain", "write"})


class StackRefusedError(RefusedError):
    """No engine is made for this pull request; the message says what is missing."""


@dataclass(frozen=True)
class Stack:
    """Where engines go. `base`: the commit that the pull request is for; `head`: its newest; `branch`: its own."""

    base: str
    head: str
    branch: str


def stack_on(forge: Forge, number: int) -> Stack:
    """The place to stack engines on. Raises StackRefusedError unless the pull request is open, of the same repository,
    for the default branch, and bears the label, put on by somebody who may write."""
    connection = _connection(forge)
    slug = connection.address.slug
    pull = connection.read(f"reading #{number}", lambda: connection.request("GET", f"/repos/{slug}/pulls/{number}"))
    head, base = pull.get("head") or {}, pull.get("base") or {}
    problems = []
    if pull.get("state") != "open":
        problems.append(f"it is {'merged' if pull.get('merged') else 'closed'}")
    if ((head.get("repo") or {}).get("full_name") or "").casefold() != slug.casefold():
        problems.append("it comes from another repository")
    if base.get("ref") != DEFAULT_BASE:
        problems.append(f"it is not for {DEFAULT_BASE}")
    if LABEL not in {label.get("name") for label in pull.get("labels") or ()}:
        problems.append(f"it does not bear the label {LABEL}")
    elif not (who := Conversation(connection).labelled_by(number, LABEL)):
        problems.append(f"nobody can be told to have put the label {LABEL} on")
    elif not _may_write(connection, who):
        problems.append(f"@{who}, who put the label {LABEL} on, may not write to {slug}")
    if problems:
        raise StackRefusedError(f"#{number}: {'; '.join(problems)}")
    return Stack(str(base["sha"]), str(head["sha"]), str(head["ref"]))


def ask_for_engines(forge: Forge, number: int) -> None:
    """Dispatch the default branch's workflow for a pull request. Asked twice, it runs twice and comes to one."""
    from metainfer.forge.github.workflows import start_workflow

    start_workflow(_connection(forge), sibling(WORKFLOW), DEFAULT_BASE, {"pull": str(number)}, f"#{number}")


def _may_write(connection: Connection, login: str) -> bool:
    """Asked of the API: a name proves nothing, and an App's `[bot]` is nobody's permission."""
    from urllib.parse import quote

    path = f"/repos/{connection.address.slug}/collaborators/{quote(login, safe='')}/permission"
    found = connection.find(f"asking what @{login} may do", lambda: connection.request("GET", path))
    return found is not None and found.get("permission") in _WRITERS


def _connection(forge: Forge) -> Connection:
    from metainfer.forge.github.forge import GitHubForge

    if not isinstance(forge, GitHubForge):
        raise StackRefusedError("a local forge has no labels that start a workflow; run `metainfer run` on the branch")
    return forge.connection
