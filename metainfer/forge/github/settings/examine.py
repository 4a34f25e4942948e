"""The whole examination of a repository's settings, and of the token that asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from metainfer.errors import InputError
from metainfer.forge.github.connect import Connection
from metainfer.forge.github.settings.actions import examine_runners, examine_secrets, examine_workflows
from metainfer.forge.github.settings.branch import examine_branch
from metainfer.forge.github.settings.owners import examine_owners
from metainfer.forge.github.settings.points import Point, ask, judged, unread

_WIDE = frozenset({"admin:org", "admin:enterprise", "delete_repo", "admin:org_hook", "site_admin", "user"})


def examine(
    connection: Connection, runners: Mapping[str, Sequence[str]], checks: Sequence[str] = ()
) -> Iterator[tuple[str, Point]]:
    """(heading, point) for everything. `runners`: platform of the specs → labels; `checks`: required beside ours."""
    answer = ask(connection, f"/repos/{connection.address.slug}")
    if answer.data is None:
        raise InputError(f"{connection.address.slug}: not found, or the token may not see it")
    repo: Mapping[str, Any] = answer.data
    branch = str(repo["default_branch"])
    for point in _token(answer.headers or {}, repo, app=connection.is_app):
        yield "token", point
    for heading, points in (
        (f"branch {branch}", examine_branch(connection, branch, checks)),
        ("code owners", examine_owners(connection, branch)),
        ("actions", examine_workflows(connection, private=bool(repo.get("private")))),
        ("runners", examine_runners(connection, runners)),
        ("secrets", examine_secrets(connection)),
    ):
        for point in points:
            yield heading, point


def _token(headers: Mapping[str, str], repo: Mapping[str, Any], *, app: bool) -> Iterator[Point]:
    scopes = headers.get("x-oauth-scopes")
    may = repo.get("permissions")
    if may is None:
        yield unread("the token may push and open pull requests", "a token for this repository")
    else:
        yield judged(
            "the token may push and open pull requests",
            bool(may.get("push")),
            detail="its owner may only read here",
            step="use an account, token or App with “Contents: write” and “Pull requests: write”",
        )
    if scopes:
        held = {scope.strip() for scope in scopes.split(",") if scope.strip()}
        wide = sorted(held & _WIDE)
        detail = (
            f"a classic token with {', '.join(sorted(held)) or 'no scopes'}: it works in every repository of its owner"
        )
        yield Point(
            "missing" if wide else "advice",
            "the token holds no more than it needs",
            detail,
            "use a GitHub App, or a fine-grained token for this repository alone",
        )
    elif not app:
        yield Point(
            "unread",
            "the token holds no more than it needs",
            "GitHub lists the permissions of no fine-grained or workflow token; they show where the token was made",
        )
    else:
        yield Point("ok", "an App's short-lived token is used")
