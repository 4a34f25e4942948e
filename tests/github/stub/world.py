"""What the stub remembers that is not in Git: people, tokens, pull requests and what is said about them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from tests.github.bare import Bare

ROLES = ("none", "read", "triage", "write", "maintain", "admin")
Kind = Literal["classic", "fine-grained", "installation"]


def now() -> str:
    """The time as GitHub writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(eq=False)
class User:
    """An account: a person, an organisation, or an App's bot."""

    login: str
    id: int
    type: Literal["User", "Organization", "Bot"] = "User"
    name: str = ""
    email: str = ""


@dataclass(eq=False)
class Token:
    """Credentials. `permissions` binds fine-grained and installation tokens, `scopes` classic ones."""

    value: str
    user: User
    kind: Kind = "classic"
    permissions: Mapping[str, str] | None = None
    scopes: str = "repo, workflow"
    repositories: frozenset[str] | None = None
    """The only repositories that it sees; None for all that its user sees."""
    remaining: int = 5000


@dataclass(eq=False)
class App:
    """A GitHub App with its public key in PEM, installed on the repositories of `installations`."""

    id: int
    slug: str
    public_key: str
    permissions: Mapping[str, str]
    bot: User
    installations: dict[int, str] = field(default_factory=dict)
    """Installation number → the one repository's full name."""


@dataclass(eq=False)
class Team:
    org: str
    slug: str
    id: int
    members: dict[str, str] = field(default_factory=dict)
    """Login → "active" or "pending"."""
    roles: dict[str, str] = field(default_factory=dict)
    """Repository's full name → role."""


@dataclass(eq=False)
class Comment:
    id: int
    user: User
    body: str
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)
    reactions: list[tuple[User, str]] = field(default_factory=list)


@dataclass(eq=False)
class Review:
    id: int
    user: User
    state: str
    body: str
    commit_id: str
    submitted_at: str = field(default_factory=now)


@dataclass(eq=False)
class IssueEvent:
    """Something that was done to an issue: closed, reopened, merged, labeled, unlabeled."""

    id: int
    event: str
    actor: User
    label: str | None = None
    created_at: str = field(default_factory=now)


@dataclass(eq=False)
class Issue:
    """An issue; the half of a pull request that is one has `pull` set."""

    number: int
    id: int
    title: str
    body: str | None
    user: User
    state: Literal["open", "closed"] = "open"
    state_reason: str | None = None
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)
    closed_at: str | None = None
    closed_by: User | None = None
    labels: list[str] = field(default_factory=list)
    assignees: list[User] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    events: list[IssueEvent] = field(default_factory=list)
    pull: Pull | None = None

    def touch(self) -> None:
        self.updated_at = now()


@dataclass(eq=False)
class Pull:
    """`head` and `base_sha` are what they were when last seen open; Git is asked each time while it is open."""

    head_repo: str
    head_ref: str
    base_ref: str
    head: str
    base_sha: str
    base_tip: str
    """Where the base was when last looked at: it tells a merge by push from a branch that was set back."""
    draft: bool = False
    maintainer_can_modify: bool = False
    merged_at: str | None = None
    merged_by: User | None = None
    merge_commit: str | None = None
    reviews: list[Review] = field(default_factory=list)
    requested_users: list[str] = field(default_factory=list)
    requested_teams: list[str] = field(default_factory=list)
    last_pusher: str = ""


@dataclass(eq=False)
class CommitStatus:
    id: int
    sha: str
    state: str
    context: str
    description: str | None
    target_url: str | None
    creator: User
    created_at: str = field(default_factory=now)


@dataclass(eq=False)
class Release:
    id: int
    tag: str
    target: str
    name: str | None
    body: str | None
    draft: bool
    prerelease: bool
    author: User
    created_at: str = field(default_factory=now)
    published_at: str | None = None
    assets: list[Asset] = field(default_factory=list)


@dataclass(eq=False)
class Asset:
    id: int
    name: str
    label: str | None
    content_type: str
    data: bytes
    uploader: User
    created_at: str = field(default_factory=now)
    downloads: int = 0


@dataclass(eq=False)
class WorkflowRun:
    """One run of the workflow whose file is `path`; `conclusion` is None until it is done."""

    id: int
    number: int
    path: str
    event: str
    branch: str | None
    sha: str
    status: str = "in_progress"
    conclusion: str | None = None
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)

    def end(self, conclusion: str) -> None:
        self.status, self.conclusion, self.updated_at = "completed", conclusion, now()


@dataclass(eq=False)
class Repo:
    """One repository. `bare` holds all that Git holds."""

    owner: User
    name: str
    id: int
    bare: Bare
    private: bool = False
    parent: str | None = None
    default_branch: str = "main"
    description: str | None = None
    created_at: str = field(default_factory=now)
    roles: dict[str, str] = field(default_factory=dict)
    """Login → role, beside the owner, who is admin."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What PATCH set: allow_merge_commit and the like."""
    issues: dict[int, Issue] = field(default_factory=dict)
    labels: dict[str, dict[str, Any]] = field(default_factory=dict)
    statuses: list[CommitStatus] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    protection: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Branch → the body of the PUT that set it."""
    rulesets: list[dict[str, Any]] = field(default_factory=list)
    actions: dict[str, Any] = field(default_factory=dict)
    """Settings of Actions by the last part of their path: `permissions`, `workflow`, `runners`…"""
    variables: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name → value, time."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Name → time; a value is never given out."""
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    dispatches: list[dict[str, Any]] = field(default_factory=list)
    """Runs of workflows that were asked for."""
    runs: list[WorkflowRun] = field(default_factory=list)
    """Runs that there were, the oldest first."""

    @property
    def full_name(self) -> str:
        return f"{self.owner.login}/{self.name}"

    def next_number(self) -> int:
        return max(self.issues, default=0) + 1

    def start_run(self, world: World, workflow: str, event: str, sha: str, branch: str | None = "main") -> WorkflowRun:
        """Write down that a workflow, named by its file, began to run."""
        path = f".github/workflows/{workflow}"
        number = sum(run.path == path for run in self.runs) + 1
        self.runs.append(WorkflowRun(world.next_id(), number, path, event, branch, sha))
        return self.runs[-1]


class World:
    """All accounts and repositories of one server. Repositories lie below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = ""
        """The server's own URL, set once it runs."""
        self.users: dict[str, User] = {}
        self.tokens: dict[str, Token] = {}
        self.apps: dict[int, App] = {}
        self.teams: dict[tuple[str, str], Team] = {}
        self.repos: dict[str, Repo] = {}
        self._ids: Iterator[int] = itertools.count(1001)

    @property
    def api(self) -> str:
        return f"{self.base}/api/v3"

    def next_id(self) -> int:
        return next(self._ids)

    def user(self, login: str, type: Literal["User", "Organization", "Bot"] = "User") -> User:
        """The account of that name, made if it is not there."""
        key = login.casefold()
        if key not in self.users:
            email = f"{login.removesuffix('[bot]')}@example.org"
            self.users[key] = User(login, self.next_id(), type, login.title(), email)
        return self.users[key]

    def by_email(self, email: str) -> User | None:
        return next((user for user in self.users.values() if user.email.casefold() == email.casefold()), None)

    def repo(self, full_name: str) -> Repo | None:
        return self.repos.get(full_name.casefold())

    def role(self, repo: Repo, user: User | None) -> str:
        """What an account may do: the most that it is given by itself or by a team."""
        found = ["read"] if not repo.private else []
        if user is not None:
            found.append("admin" if user is repo.owner else repo.roles.get(user.login.casefold(), "none"))
            found += [
                team.roles.get(repo.full_name.casefold(), "none")
                for team in self.teams.values()
                if team.members.get(user.login.casefold()) == "active"
            ]
        return max(found, key=ROLES.index, default="none")
