"""How a read is repeated: as late as GitHub asks, and not at all where that is later than a run can wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from github.GithubException import GithubException, RateLimitExceededException
from github.GithubRetry import GithubRetry
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import InvalidHeader, MaxRetryError
from urllib3.util.retry import Retry

_LIMITED = (403, 429)


class Reads(GithubRetry):
    """PyGithub's policy, which knows GitHub's limits, with two gaps filled.

    PyGithub sleeps for any `Retry-After` (urllib3 cuts it at six hours), whatever its own longest wait is. And when
    the attempts are used up, it says that there were too many, not that there is a limit and how long it lasts.
    """

    def __init__(self, *, sleeper: Callable[[float], None], longest_wait_s: float, **options: Any) -> None:
        self._sleeper = sleeper
        self._longest_wait_s = longest_wait_s
        options["max_rate_limit_wait"] = longest_wait_s
        super().__init__(**options)

    def new(self, **changes: Any) -> Reads:
        return super().new(sleeper=self._sleeper, longest_wait_s=self._longest_wait_s, **changes)

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        try:
            return super().get_retry_after(response)
        except InvalidHeader:
            return None

    def increment(  # type: ignore[override]  # GithubRetry's own signature differs from urllib3's as well
        self, method: str | None = None, url: str | None = None, response: Any = None, *more: Any, **named: Any
    ) -> Retry:
        """The policy for the next attempt. A GithubException where that comes too late, or is one too many."""
        limited = response is not None and response.status in _LIMITED
        if response is not None and (self.get_retry_after(response) or 0) > self._longest_wait_s:
            raise _limit(response) if limited else GithubException(response.status, {"message": "asked to wait"}, {})
        try:
            return super().increment(method, url, response, *more, **named)
        except MaxRetryError:
            if limited:
                raise _limit(response) from None
            raise

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        asked_s = self.get_retry_after(response) if response is not None else None
        wait_s = asked_s or self.get_backoff_time()
        if wait_s > 0:
            self._sleeper(wait_s)


def _limit(response: BaseHTTPResponse) -> RateLimitExceededException:
    return RateLimitExceededException(response.status, {"message": "rate limit"}, dict(response.headers))
