"""What the tests of faults share: a repository that can be put back, and runs with one fault in them.

An operation is prepared once. For each of its calls and each kind of fault it is then run in a copy of what was
prepared, with the fault at that call, and once more without any, as the next run of a workflow would.
"""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from metainfer.errors import MetainferError
from metainfer.forge.github.address import parse_address
from metainfer.forge.github.connect import Connection
from metainfer.forge.github.credentials import Credentials
from metainfer.forge.github.forge import GitHubForge
from metainfer.forge.github.mirror import Mirror
from tests.github import faults
from tests.github.faults import Call, Fault
from tests.github.stub import Stub
from tests.github.stub.app import Answer
from tests.github.stub.world import Issue, Repo

BOT_RIGHTS = {
    "actions": "write",
    "contents": "write",
    "issues": "write",
    "pull_requests": "write",
    "statuses": "write",
}
WAIT_S = 7
"""What a limited call is told to wait: no other wait is as long."""
SOON = {"Retry-After": str(WAIT_S)}
SECONDARY_LIMIT = replace(faults.SECONDARY_LIMIT, headers=SOON)
TOO_MANY = replace(faults.TOO_MANY, headers=SOON)
SLOW = replace(faults.SLOW, delay_s=0.02)
USED_UP = Fault(
    "primary limit",
    False,
    403,
    {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "4102444800"},
    {"message": "API rate limit exceeded for installation ID 1.", "documentation_url": "https://docs.github.com/rest"},
)
QUICK_FAULTS = (
    faults.DROPPED_BEFORE,
    faults.DROPPED_AFTER,
    faults.GATEWAY_BEFORE,
    faults.GATEWAY_AFTER,
    SECONDARY_LIMIT,
    TOO_MANY,
    USED_UP,
    faults.UNPROCESSABLE,
    SLOW,
    faults.CUT_SHORT,
)
AT_WRITES = tuple(fault for fault in QUICK_FAULTS if fault is not SLOW)
AT_READS = (faults.DROPPED_AFTER, SECONDARY_LIMIT, faults.UNPROCESSABLE)
"""Of two faults that a read meets in the same line of code, one: it has no effect, so that before and after are one."""
ANY_AT_READS = tuple(fault for fault in QUICK_FAULTS if fault not in (faults.DROPPED_BEFORE, faults.GATEWAY_BEFORE))
SILENCE = (faults.SILENT_BEFORE, faults.SILENT_AFTER)
ADVICE = re.compile(r"again|renew|check |needs |raise |review|wait")
"""In every error: what a person can do about it."""


@dataclass
class Ground:
    """One repository on the stub, and the accounts that work on it: the bot, alice and bob who may write, carol."""

    stub: Stub
    slug: str
    folder: Path
    files: Mapping[str, bytes] | None = None
    waits: list[float] = field(default_factory=list)
    _runs: int = 0

    def __post_init__(self) -> None:
        made = self.stub.repo(self.slug, self.files, alice="write", bob="write", carol="read")
        made.bare.git("config", "core.logAllRefUpdates", "always")
        self.bot = self.stub.actions_token(self.slug, **BOT_RIGHTS)
        self.people = {login: self.stub.token(login) for login in ("alice", "bob", "carol", "octo")}

    @property
    def repo(self) -> Repo:
        return self.stub.world.repos[self.slug]

    # Clients

    def connection(self, token: str | None = None) -> Connection:
        """Whose waits are written down and not waited for."""
        server = {"METAINFER_GITHUB_API": self.stub.api_url, "METAINFER_GITHUB_SERVER": self.stub.url}
        address = parse_address(f"github:{self.slug}", server)
        return Connection(address, Credentials(token=token or self.bot), sleep=self.waits.append)

    def forge(self, token: str | None = None, mirror: str = "") -> GitHubForge:
        """As a new process opens it: with an empty mirror, or with the one that an earlier process left."""
        self._runs += 1
        connection = self.connection(token)
        folder = self.folder / (mirror or f"mirror-{self._runs}")
        return GitHubForge(
            connection, Mirror(connection.address, folder, lambda: connection.git_token, sleep=self.waits.append)
        )

    def as_(self, login: str, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """A call of the API in somebody's name; `path` below the repository's."""
        return self.connection(self.people[login]).request(verb, f"/repos/{self.slug}{path}", body)

    # Looking, past the API

    def refs(self) -> dict[str, str]:
        return self.repo.bare.branches("refs")

    def tip(self, branch: str) -> str:
        found = self.repo.bare.tip(f"refs/heads/{branch}")
        assert found is not None, f"there is no branch {branch}"
        return found

    def pulls(self, state: str = "") -> list[Issue]:
        """Pull requests as the server holds them, once it looked at Git."""
        self.as_("octo", "GET", "/pulls?state=all")
        return [i for i in self.repo.issues.values() if i.pull is not None and state in ("", i.state)]

    def moves(self) -> int:
        """How often branches and tags were moved so far, by Git's own log. A push that is refused moves none."""
        logs = (self.repo.bare.path / "logs/refs").rglob("*")
        return sum(len(log.read_bytes().splitlines()) for log in logs if log.is_file() and "pull" not in log.parts)

    def comments(self, number: int) -> list[str]:
        return [comment.body for comment in self.repo.issues[number].comments]


@dataclass
class Snapshot:
    """A repository as it was at one moment, in Git and beside it."""

    ground: Ground
    repo: Repo
    bare: Path

    @classmethod
    def of(cls, ground: Ground) -> Snapshot:
        bare = ground.folder / "snapshot.git"
        shutil.rmtree(bare, ignore_errors=True)
        shutil.copytree(ground.repo.bare.path, bare)
        return cls(ground, _copied(ground, ground.repo), bare)

    def restore(self) -> None:
        """Put all back. What earlier runs knew, new forges do not."""
        world, path = self.ground.stub.world, self.ground.repo.bare.path
        shutil.rmtree(path)
        shutil.copytree(self.bare, path)
        world.repos[self.ground.slug] = _copied(self.ground, self.repo)


def _copied(ground: Ground, repo: Repo) -> Repo:
    """A copy with the same accounts: the stub tells them apart by identity."""
    return copy.deepcopy(repo, {id(user): user for user in ground.stub.world.users.values()})


@dataclass(frozen=True)
class Operation:
    """Something that the product does on GitHub in several calls."""

    name: str
    prepare: Callable[[Ground], None]
    act: Callable[[Ground, GitHubForge], Any]
    """One run, in a process of its own."""
    check: Callable[[Ground], None]
    """What must hold afterwards, whatever happened in between."""
    outcomes: frozenset[Any]
    """What a run that ends well may come to; {None} where it tells nothing."""
    calls: Sequence[str]
    """Some of the calls that must be among those that were recorded: else nothing is proven."""
    login: str = ""
    """Who acts; the bot if nobody is named."""
    may_repeat: Sequence[str] = ()
    """Routes whose effect a second run may have once more, since that does no harm."""

    def __str__(self) -> str:
        return self.name

    def run(self, ground: Ground, mirror: str = "") -> Any:
        token = ground.people[self.login] if self.login else None
        return self.act(ground, ground.forge(token, mirror))


class Trial:
    """Runs of one operation. Everything that is wrong in any of them is collected, with the call and the fault."""

    def __init__(self, operation: Operation, ground: Ground) -> None:
        self.operation = operation
        self.ground = ground
        operation.prepare(ground)
        self.snapshot = Snapshot.of(ground)
        self.calls = self._record()
        self.moves = ground.moves()

    def _record(self) -> list[Call]:
        """The calls of a run in which nothing goes wrong. A second run has nothing to do then, and writes nothing."""
        self._restore()
        outcome = self.operation.run(self.ground)
        calls = list(self.ground.stub.faults.calls)
        assert outcome in self.operation.outcomes
        self.operation.check(self.ground)
        moves = self.ground.moves()
        self.ground.stub.reset()
        assert self.operation.run(self.ground) in self.operation.outcomes
        self.operation.check(self.ground)
        sent = [one for one in self.ground.stub.journal.answers if one.method != "GET"]
        assert [one.route for one in sent if one.route not in self.operation.may_repeat] == []
        assert self.ground.moves() == moves
        shown = [str(call) for call in calls]
        for pattern in self.operation.calls:
            assert any(re.search(pattern, one) for one in shown), f"{pattern} is not among {shown}"
        return calls

    def strike_all(self, at_reads: Sequence[Fault], at_writes: Sequence[Fault]) -> list[str]:
        """What goes wrong when each call in its turn meets each of the faults for its kind."""
        struck = (
            self.strike(fault, nth)
            for nth, call in enumerate(self.calls, 1)
            for fault in (at_reads if call.reads else at_writes)
        )
        return [problem for problems in struck for problem in problems]

    def strike(self, fault: Fault, nth: int) -> list[str]:
        """What goes wrong when `fault` happens to the call number `nth`, from 1."""
        return [f"{fault} at {nth}, {self.calls[nth - 1]}: {problem}" for problem in self._strike(fault, nth)]

    def _strike(self, fault: Fault, nth: int) -> Iterator[str]:
        ground, operation = self.ground, self.operation
        self._restore()
        server = ground.stub.faults
        server.plan(fault, "*", "", nth)
        mirror = "kept" if nth % 2 else ""
        error: Exception | None = None
        outcome = None
        try:
            outcome = operation.run(ground, mirror)
        except Exception as raised:
            error = raised
        if [_nameless(call) for call in server.struck] != [_nameless(self.calls[nth - 1])]:
            yield f"struck {server.struck}: the calls are not the same each time"
        if error is not None:
            yield from _error_problems(error)
        elif outcome not in operation.outcomes:
            yield f"came to {outcome}"
        if fault.headers == SOON and _is_api(self.calls[nth - 1]):
            yield from _wait_problems(ground.waits, error)
        yield from self._next_run_problems(mirror, error is None)
        yield from _repeats(ground.stub.journal.answers, operation.may_repeat)
        if (moves := ground.moves()) > self.moves:
            yield f"branches were moved {moves} times, and {self.moves} times where nothing went wrong"

    def _next_run_problems(self, mirror: str, done: bool) -> Iterator[str]:
        """The state must hold: at once if the run ended well, after one more run if it did not."""
        if not done:
            try:
                outcome = self.operation.run(self.ground, mirror)
            except Exception as raised:
                yield f"the next run failed: {raised!r}"
                return
            if outcome not in self.operation.outcomes:
                yield f"the next run came to {outcome}"
        try:
            self.operation.check(self.ground)
        except AssertionError as wrong:
            yield f"left behind: {wrong}"

    def _restore(self) -> None:
        self.snapshot.restore()
        self.ground.stub.reset()
        self.ground.waits.clear()
        shutil.rmtree(self.ground.folder / "kept", ignore_errors=True)


def _error_problems(error: Exception) -> Iterator[str]:
    if not isinstance(error, MetainferError):
        yield f"a traceback: {error!r}"
    elif not ADVICE.search(str(error)):
        yield f"an error that does not say what to do: {error}"
    elif "\n" in str(error).strip() and "  - " not in str(error):
        yield f"an error over several lines: {error}"


def _wait_problems(waits: Sequence[float], error: Exception | None) -> Iterator[str]:
    if error is None and not any(wait >= WAIT_S for wait in waits):
        yield f"waited {waits}, and was told to wait {WAIT_S} s"
    if error is not None and f"{WAIT_S} s" not in str(error):
        yield f"neither waited nor told to wait {WAIT_S} s: {error}"


def _nameless(call: Call) -> str:
    """A call without what differs each time: numbers that the server gives, and commits that hold a time."""
    return re.sub(r"[0-9a-f]{40}|[0-9]{4,}", "*", str(call))


def _is_api(call: Call) -> bool:
    return call.path.startswith("/api/")


def _repeats(answers: Sequence[Answer], allowed: Sequence[str]) -> Iterator[str]:
    """Writes that were sent once more after they had been carried out."""
    done: set[tuple[str, str, str, bytes]] = set()
    for one in answers:
        key = (one.method, one.path, one.query, one.sent)
        if one.method == "GET":
            continue
        if key in done and one.route not in allowed:
            yield f"{one.method} {one.route} was carried out, and sent again"
        if one.status < 300:
            done.add(key)
