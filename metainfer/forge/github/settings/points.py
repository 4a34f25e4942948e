"""One point of the examination, and the questions behind it. No answer is never taken for a good one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from metainfer.forge.github.connect import Connection
from metainfer.forge.github.errors import message_of, told

State = Literal["ok", "missing", "unread", "advice"]


@dataclass(frozen=True, slots=True)
class Point:
    """`missing`: has to be set. `unread`: the token may not look. `advice`: works as it is, and could be safer."""

    state: State
    what: str
    detail: str = ""
    step: str = ""
    """The setting's place and value, for whoever may change it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What GitHub said to one question. `data` None: it refused, or there is no such thing."""

    status: int
    data: Any
    message: str = ""
    headers: Mapping[str, str] | None = None

    @property
    def refused(self) -> bool:
        """Whether the token may not know. GitHub says 404 for much that a token may not see."""
        return self.status in (401, 403) or (self.status == 404 and self.message == "Not Found")


def ask(connection: Connection, path: str) -> Reply:
    """One question about `path`, a path of the API. Raises MachineError if GitHub cannot be reached."""
    import github

    with told(connection.address, f"asking for {path}"):
        try:
            headers, data = connection.api.requester.requestJsonAndCheck("GET", path)
        except github.RateLimitExceededException:
            raise
        except github.GithubException as error:
            if error.status >= 500 or error.status == 401:
                raise
            said = error.data.get("message", "") if isinstance(error.data, Mapping) else ""
            return Reply(error.status, None, str(said or message_of(error)))
    lowered = {str(name).casefold(): str(value) for name, value in headers.items()}
    return Reply(200, data, headers=lowered)


def unread(what: str, needs: str) -> Point:
    """A point that stays open: `needs` is the permission that reading it takes."""
    return Point("unread", what, f"cannot be read with this token; it takes {needs}")


def judged(what: str, good: bool, *, detail: str = "", step: str = "", advice: bool = False) -> Point:
    """`ok`, or what is to be done about it."""
    if good:
        return Point("ok", what)
    return Point("advice" if advice else "missing", what, detail, step)
