"""Who may do what on GitHub: permissions of people, and members of the teams that CODEOWNERS names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

from metainfer.forge.codeowners import CodeOwners
from metainfer.forge.github.connect import Connection
from metainfer.forge.protocol import Review

Permission = Literal["admin", "write", "read", "none"]
_WRITE = frozenset({"admin", "write"})


class Owners:
    """Asks GitHub; nothing is inferred from a name, an association or an event."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def permission(self, login: str) -> Permission:
        """What an account may do in the repository; `none` for one that GitHub does not know there.

        GitHub reports the role `maintain` as `write` and `triage` as `read` here.
        """
        path = f"/repos/{self.connection.address.slug}/collaborators/{quote(login, safe='')}/permission"
        found: Any = self.connection.find(f"asking what {login} may do", lambda: self.connection.request("GET", path))
        value = (found or {}).get("permission")
        return value if value in ("admin", "write", "read") else "none"

    def may_write(self, login: str) -> bool:
        """Whether the account may push to the repository."""
        return self.permission(login) in _WRITE

    def is_member(self, team: str, login: str) -> bool:
        """Whether `login` is an active member of `team` (`@org/slug`). A team that the token cannot see has none."""
        org, _, slug = team.removeprefix("@").partition("/")
        path = f"/orgs/{quote(org, safe='')}/teams/{quote(slug, safe='')}/memberships/{quote(login, safe='')}"
        found: Any = self.connection.find(
            f"asking whether {login} is in {team}", lambda: self.connection.request("GET", path)
        )
        return (found or {}).get("state") == "active"

    def with_teams(self, approvals: Sequence[Review], owners: CodeOwners) -> tuple[Review, ...]:
        """The approvals, and one more in the name of each owning team for each of its members among the approvers."""
        teams = sorted({owner for rule in owners.rules for owner in rule.owners if "/" in owner})
        in_teams = [
            review.model_copy(update={"by": team})
            for team in teams
            for review in approvals
            if self.is_member(team, review.name)
        ]
        return (*approvals, *in_teams)
