"""Commit statuses: the latest one of a context is the one that counts, whatever event it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from metainfer.forge.github.connect import Connection


@dataclass(frozen=True, slots=True)
class Status:
    """As GitHub holds it. `state` is success, pending, failure or error; two with other links say the same."""

    state: str
    description: str
    target_url: str = field(default="", compare=False)


class Statuses:
    """Reads and sets them; setting what is there already sends nothing."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def latest(self, commit: str, context: str) -> Status | None:
        """The one that counts for a context; None if there is none."""
        path = f"/repos/{self.connection.address.slug}/commits/{commit}/status?per_page=100"
        page = 1
        while True:
            data: Any = self.connection.read(
                f"reading the statuses of {commit[:12]}",
                lambda page=page: self.connection.request("GET", f"{path}&page={page}"),  # type: ignore[misc]
            )
            statuses = data.get("statuses") or []
            for status in statuses:
                if status.get("context") == context:
                    return _status(status)
            if len(statuses) < 100:
                return None
            page += 1

    def put(self, commit: str, context: str, status: Status) -> bool:
        """Make `status` the one that counts. False if it was so already."""
        if self.latest(commit, context) == status:
            return False
        path = f"/repos/{self.connection.address.slug}/statuses/{commit}"
        body = {"context": context, "state": status.state, "description": status.description}
        if status.target_url:
            body["target_url"] = status.target_url

        def there() -> Status | None:
            return status if self.latest(commit, context) == status else None

        self.connection.write(
            f"setting {context} of {commit[:12]}",
            lambda: _status(self.connection.request("POST", path, body)),
            there,
        )
        return True


def _status(data: Any) -> Status:
    return Status(str(data.get("state")), str(data.get("description") or ""), str(data.get("target_url") or ""))
