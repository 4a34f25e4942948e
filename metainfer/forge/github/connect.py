"""A connection to one repository on GitHub: reads that may be repeated, and writes that are looked for before they are.

An answer can get lost after the work was done. PyGithub's own policy sends a POST again then, which opens a second
pull request. Here only reads are repeated by the transport; a write is repeated by `write`, after `find` did not see
what the first one was to leave behind.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from metainfer import __version__
from metainfer.errors import MachineError, MetainferError
from metainfer.forge.github.address import GitHubAddress
from metainfer.forge.github.credentials import Credentials, auth_for, find_credentials
from metainfer.forge.github.errors import Limited, Refused, judge, told

if TYPE_CHECKING:
    from github import Github
    from github.Auth import Auth
    from github.Repository import Repository

ATTEMPTS = 5
TIMEOUT_S = 30
LONGEST_WAIT_S = 300.0
"""A limit that lasts longer ends the run; the next one goes on where it stopped."""
Result = TypeVar("Result")


class Connection:
    """The API of one repository. Nothing is sent before the first call."""

    def __init__(
        self, address: GitHubAddress, credentials: Credentials, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.address = address
        self._credentials = credentials
        self._sleep = sleep

    @cached_property
    def _auth(self) -> Auth:
        with told(self.address, "signing in"):
            return auth_for(self._credentials, self.address)

    @cached_property
    def api(self) -> Github:
        """PyGithub's entry point, with a retry policy that leaves every write alone."""
        import github

        from metainfer.forge.github.reads import Reads

        # It tells every refusal on standard error by itself; here each becomes an error, or an answer.
        logging.getLogger("github").setLevel(logging.WARNING)
        reads = Reads(
            sleeper=self._sleep,
            longest_wait_s=LONGEST_WAIT_S,
            total=ATTEMPTS,
            backoff_factor=0.01 if self.address.is_local else 0.5,
            allowed_methods=frozenset({"GET", "HEAD"}),
            status_forcelist=[429, *range(500, 600)],
        )
        return github.Github(
            auth=self._auth,
            lazy=True,
            base_url=self.address.api,
            timeout=TIMEOUT_S,
            user_agent=f"metainfer/{__version__}",
            per_page=100,
            retry=reads,
            seconds_between_requests=0 if self.address.is_local else 0.1,
            seconds_between_writes=0 if self.address.is_local else 1.0,
        )

    @cached_property
    def repo(self) -> Repository:
        """The repository, without asking for it: its own data is read when it is first used."""
        return self.api.get_repo(self.address.slug)

    @property
    def is_app(self) -> bool:
        """Whether an App signs in, and not somebody's token."""
        return self._credentials.is_app

    @property
    def git_token(self) -> str:
        """What Git's HTTP transport signs in with, as user `x-access-token`. Short-lived for an App."""
        return self._auth.token

    @cached_property
    def own_login(self) -> str:
        """The account whose comments are ours: a user's, an App's, or that of Actions."""
        if self._credentials.is_app:
            return f"{self._app_slug()}[bot]"
        try:
            with told(self.address, "asking who the token belongs to"):
                return self.api.get_user().login
        except MetainferError as error:
            # The token of a workflow run is an installation's, and may not ask for a user. A limit is a 403 as well.
            if isinstance(error.__cause__, Exception) and judge(error.__cause__) in (Refused(403), Refused(404)):
                return "github-actions[bot]"
            raise

    def _app_slug(self) -> str:
        import github
        from github import Auth

        app = Auth.AppAuth(int(self._credentials.app_id), self._credentials.app_key)
        with (
            told(self.address, "asking for the App's name"),
            github.GithubIntegration(base_url=self.address.api, auth=app) as integration,
        ):
            return integration.get_app().slug

    # Calls

    def read(self, what: str, call: Callable[[], Result]) -> Result:
        """The answer to a question; the transport repeats it as needed. `what` says what for, in an error."""
        with told(self.address, what):
            return call()

    def find(self, what: str, call: Callable[[], Result]) -> Result | None:
        """The same, with None for what is not there (404)."""
        import github

        with told(self.address, what):
            try:
                return call()
            except github.UnknownObjectException:
                return None

    def write(
        self,
        what: str,
        call: Callable[[], Result],
        find: Callable[[], Result | None],
        *,
        taken: Iterable[int] = (),
    ) -> Result:
        """Do something exactly once, though answers get lost.

        `find` looks for what the write leaves behind; it is asked after every answer that leaves doubt, and after a
        refusal whose status is in `taken` (422 for "already exists"): another run may have done the same. A refusal
        with nothing to be found is raised as it is.
        """
        taken = frozenset(taken)
        with told(self.address, what):
            for attempt in range(ATTEMPTS):
                try:
                    return call()
                except Exception as error:
                    verdict = judge(error)
                    refused = isinstance(verdict, Refused)
                    if verdict is None or (isinstance(verdict, Refused) and verdict.status not in taken):
                        raise
                    self._pause(attempt, verdict.wait_s if isinstance(verdict, Limited) else 0.0)
                    found = find()
                    if found is not None:
                        return found
                    if refused and attempt >= 2:  # a list may lag behind a write; after that it is a plain refusal
                        raise
                    last = error
            raise MachineError(
                f"{self.address.slug}: {what}: no sure answer in {ATTEMPTS} attempts; run it again later, "
                "it goes on where this stopped"
            ) from last

    def request(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """A call that PyGithub has no method for. `path` starts with a slash, relative to the API's base."""
        _, data = self.api.requester.requestJsonAndCheck(verb, path, input=dict(body) if body is not None else None)
        return data

    def _pause(self, attempt: int, at_least_s: float) -> None:
        if at_least_s > LONGEST_WAIT_S:
            raise MachineError(
                f"{self.address.slug}: the rate limit lasts for another {at_least_s:.0f} s; run it again then, "
                "it goes on where this stopped"
            )
        backoff = 0.02 if self.address.is_local else 1.0
        self._sleep(max(at_least_s, backoff * 2**attempt))


def connect(address: GitHubAddress, environment: Mapping[str, str] | None = None) -> Connection:
    """A connection with the credentials of the environment. InputError if there are none."""
    return Connection(address, find_credentials(os.environ if environment is None else environment))
