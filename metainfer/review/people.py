"""What GitHub says about the people who reviewed: may they write, and in whose name do they speak."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from metainfer.forge.codeowners import CodeOwners
from metainfer.forge.github.connect import Connection
from metainfer.forge.github.credentials import MEMBERS_TOKEN, Credentials
from metainfer.forge.github.errors import GitHubRefusedError
from metainfer.forge.github.owners import Owners
from metainfer.forge.protocol import Review
from metainfer.review.verdict import Approval


@dataclass
class People:
    """Asks each question once per run. A team that the token may not see is remembered as such, not as empty."""

    connection: Connection
    members: Connection
    """What teams are asked with: their members are a secret of the organisation, which few tokens may know."""
    _may_write: dict[str, bool] = field(default_factory=dict)
    _visible: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, connection: Connection, environment: Mapping[str, str] | None = None) -> People:
        """With the token for teams that the environment holds, if it holds one."""
        token = (os.environ if environment is None else environment).get(MEMBERS_TOKEN, "").strip()
        return cls(connection, Connection(connection.address, Credentials(token=token)) if token else connection)

    def may_write(self, login: str) -> bool:
        """By the repository's permission for the account, never by its name or association."""
        if login not in self._may_write:
            self._may_write[login] = Owners(self.connection).may_write(login)
        return self._may_write[login]

    def unseen_teams(self, owners: CodeOwners, paths: Iterable[str]) -> list[str]:
        """Owning teams of the paths whose members cannot be read."""
        return [team for team in _teams(owners, paths) if not self._sees(team)]

    def approvals(self, reviews: Iterable[Review], owners: CodeOwners, paths: Iterable[str]) -> list[Approval]:
        """The reviews, each with every name that its author has in CODEOWNERS."""
        teams = [team for team in _teams(owners, paths) if self._sees(team)]
        asked = Owners(self.members)
        return [
            Approval(
                by=review.by,
                names=(review.by, *(team for team in teams if asked.is_member(team, review.name))),
                head=review.head,
                may_write=self.may_write(review.name),
            )
            for review in reviews
        ]

    def _sees(self, team: str) -> bool:
        if team not in self._visible:
            org, _, slug = team.removeprefix("@").partition("/")
            path = f"/orgs/{quote(org, safe='')}/teams/{quote(slug, safe='')}"
            try:
                found: Any = self.members.find(f"looking up {team}", lambda: self.members.request("GET", path))
            except GitHubRefusedError:
                found = None
            self._visible[team] = found is not None
        return self._visible[team]


def _teams(owners: CodeOwners, paths: Iterable[str]) -> list[str]:
    return sorted({owner for path in paths for owner in owners.owners(path) if "/" in owner and owner.startswith("@")})
