"""The one issue: found by who wrote it and by its hidden marker, made if there is none, never made twice.

Whoever wants none closes it as *not planned*: it is left alone then, and no other is made. Closed for any other reason,
by a robot that tidies up for example, it is opened again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from metainfer.forge.github.connect import Connection
from metainfer.forge.github.owners import Owners
from metainfer.review.dashboard.render import MARKER, TITLE, says_the_same

LABEL = "metainfer-dashboard"
_QUIET_S = 3600
"""A body that differs in its time alone is written this seldom."""
Done = Literal["created", "updated", "unchanged", "switched off"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What was done, and to which issue."""

    done: Done
    number: int


class Dashboard:
    """The issue on one repository."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._root = f"/repos/{connection.address.slug}/issues"

    def keep(self, body: str, now: datetime) -> Kept:
        """Make the issue say `body`."""
        found = self._find()
        if not found:
            return self._create(body)
        first, others = found[0], found[1:]
        number = int(first["number"])
        if first.get("state") == "closed" and first.get("state_reason") == "not_planned":
            return Kept("switched off", number)
        for other in others:
            self._retire(other, number)
        closed = first.get("state") == "closed"
        same = says_the_same(str(first.get("body") or ""), body)
        if same and not closed and _age_s(first, now) < _QUIET_S:
            return Kept("unchanged", number)
        self._edit(number, "updating the dashboard", body=body, **({"state": "open"} if closed else {}))
        return Kept("updated", number)

    def _create(self, body: str) -> Kept:
        def made() -> Mapping[str, Any] | None:
            return next(iter(self._find()), None)

        sent = {"title": TITLE, "body": body, "labels": [LABEL]}
        issue = self.connection.write(
            "opening the dashboard", lambda: self.connection.request("POST", self._root, sent), made
        )
        # Another run may have made one in the same moment: the older one stays.
        found = self._find()
        number = int(found[0]["number"]) if found else int(issue["number"])
        for other in found[1:]:
            self._retire(other, number)
        return Kept("created", number)

    def _retire(self, issue: Mapping[str, Any], for_number: int) -> None:
        """Close a second one. Only ours are in the list, so nobody's words are lost."""
        if issue.get("state") == "open":
            text = f"The dashboard is #{for_number}.\n"
            self._edit(
                int(issue["number"]),
                "closing a second dashboard",
                body=text,
                state="closed",
                state_reason="not_planned",
            )

    def _edit(self, number: int, what: str, **fields: str) -> None:
        path = f"{self._root}/{number}"

        def edited() -> bool | None:
            now: Any = self.connection.find(what, lambda: self.connection.request("GET", path))
            return True if now and all(_same(now.get(name), value) for name, value in fields.items()) else None

        self.connection.write(what, lambda: bool(self.connection.request("PATCH", path, fields)), edited)

    def _find(self) -> list[Mapping[str, Any]]:
        """Ours, the oldest first: by label, and where somebody took that off by who wrote it."""
        asked = f"{self._root}?state=all&sort=created&direction=asc&per_page=100"
        found = [issue for issue in self._pages(f"{asked}&labels={LABEL}") if self._is_ours(issue)]
        if not found:
            creator = quote(self.connection.own_login, safe="")
            found = [issue for issue in self._pages(f"{asked}&creator={creator}") if self._is_ours(issue)]
        return sorted(found, key=lambda issue: int(issue["number"]))

    def _is_ours(self, issue: Mapping[str, Any]) -> bool:
        """By the marker, and by an author who may write here: a stranger's issue is not taken for the dashboard."""
        author = issue.get("user") or {}
        if "pull_request" in issue or not str(issue.get("body") or "").rstrip().endswith(MARKER):
            return False
        login = str(author.get("login") or "")
        if login.casefold() == self.connection.own_login.casefold() or author.get("type") == "Bot":
            return True
        return bool(login) and Owners(self.connection).may_write(login)

    def _pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        page = 1
        while True:
            found: Any = self.connection.read(
                "looking for the dashboard",
                lambda page=page: self.connection.request("GET", f"{path}&page={page}"),  # type: ignore[misc]
            )
            yield from found
            if len(found) < 100:
                return
            page += 1


def _same(one: object, other: str) -> bool:
    return str(one or "").replace("\r\n", "\n").rstrip() == other.rstrip()


def _age_s(issue: Mapping[str, Any], now: datetime) -> float:
    try:
        updated = datetime.fromisoformat(str(issue.get("updated_at")))
    except ValueError:
        return float("inf")
    updated = updated if updated.tzinfo else updated.replace(tzinfo=UTC)
    return (now - updated).total_seconds()
