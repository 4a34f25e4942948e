"""What went wrong between us and GitHub, in words that name what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from metainfer.errors import ConflictError, InputError, MachineError, MetainferError, RefusedError
from metainfer.forge.github.address import GitHubAddress

_RESUMES = "a second run goes on where this one stopped"
DEFAULT_SECONDARY_WAIT_S = 60.0
"""How long GitHub asks to wait at a secondary limit that does not say."""


class GitHubRefusedError(RefusedError):
    """GitHub understood the request and said no: a missing right, or a rule of the repository."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was read and turned down; nothing was done."""

    status: int


@dataclass(frozen=True, slots=True)
class Limited:
    """A rate limit: nothing was done, and nothing will be for `wait_s` seconds."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Unsure:
    """The answer was lost, or came from something in between. It may have been done."""


def judge(error: Exception) -> Refused | Limited | Unsure | None:
    """What an exception of PyGithub or of the connection below it says about the request; None if it says nothing."""
    import github
    import requests

    if isinstance(error, github.GithubException):
        headers = {name.casefold(): value for name, value in (error.headers or {}).items()}
        limited = isinstance(error, github.RateLimitExceededException) or error.status == 429
        if limited or (error.status == 403 and "retry-after" in headers):
            return Limited(_wait_s(headers))
        if error.status >= 500 or error.status == 408:
            return Unsure()
        return Refused(error.status)
    return Unsure() if isinstance(error, requests.RequestException) else None


@contextmanager
def told(address: GitHubAddress, what: str) -> Iterator[None]:
    """Turn an exception of PyGithub into one of ours, which says what was tried and what to do."""
    try:
        yield
    except MetainferError:
        raise
    except Exception as error:
        verdict = judge(error)
        if verdict is None:
            raise
        raise _in_words(address, what, error, verdict) from error


def message_of(error: Exception) -> str:
    """What GitHub said, on one line, with the details of each field."""
    data: Any = getattr(error, "data", None)
    if not isinstance(data, Mapping):
        return _flat(str(data or error))
    parts = [str(data.get("message") or "")]
    for detail in data.get("errors") or ():
        named = detail.get("message") or detail.get("code") if isinstance(detail, Mapping) else detail
        parts.append(str(named or ""))
    return _flat("; ".join(part for part in parts if part))


def _in_words(
    address: GitHubAddress, what: str, error: Exception, verdict: Refused | Limited | Unsure
) -> MetainferError:
    where = f"{address.slug} at {address.api}: {what}"
    said = message_of(error)
    match verdict:
        case Limited(wait_s):
            return MachineError(f"{where}: rate limit, try again in {wait_s:.0f} s; {_RESUMES}")
        case Unsure():
            return MachineError(f"{where}: no usable answer ({said}); try again, {_RESUMES}")
        case Refused(401):
            return InputError(f"{where}: the credentials are not valid (any more); renew the token")
        case Refused(403):
            needed = _permissions_needed(error)
            return GitHubRefusedError(f"{where}: not allowed ({said}){needed}")
        case Refused(404):
            return InputError(
                f"{where}: not found, or the token may not see it; check the name and the token's repositories"
            )
        case Refused(409):
            return ConflictError(f"{where}: {said}; look at it and try again, {_RESUMES}")
        case _:
            return GitHubRefusedError(f"{where}: GitHub says “{said}”; see to that and try again, {_RESUMES}")


def _permissions_needed(error: Exception) -> str:
    headers = {name.casefold(): value for name, value in (getattr(error, "headers", None) or {}).items()}
    needed = headers.get("x-accepted-github-permissions")
    return (
        f"; the token needs {_flat(needed)}" if needed else "; see `metainfer doctor --github` for what the token lacks"
    )


def _wait_s(headers: Mapping[str, str]) -> float:
    after = headers.get("retry-after", "")
    if after.isdigit():
        return float(after)
    reset = headers.get("x-ratelimit-reset", "")
    if headers.get("x-ratelimit-remaining") == "0" and reset.isdigit():
        return max(0.0, float(reset) - time.time()) + 1.0
    return DEFAULT_SECONDARY_WAIT_S


def _flat(text: str) -> str:
    from metainfer.forge.markers import one_line

    return one_line(text, 300)
