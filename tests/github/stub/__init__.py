"""A strict stand-in for GitHub: its REST API over HTTP, on top of bare repositories that Git pushes to as well.

Branches, heads, commits and tags come from Git each time, so a push moves a pull request as it does on GitHub. What a
call asks that the stub does not know is refused. tests/github/openapi.py holds every answer against
GitHub's published description.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.github.bare import Bare
from tests.github.faults import Faults
from tests.github.serving import served
from tests.github.stub.app import API, Journal, build
from tests.github.stub.world import App, Kind, Repo, Team, Token, User, World


@dataclass(slots=True)
class Stub:
    """The running server. `faults` is in front of API and Git alike; `journal` holds every answer of the API."""

    url: str
    world: World
    faults: Faults
    journal: Journal

    @property
    def api_url(self) -> str:
        """Base of the REST API, as PyGithub and `METAINFER_GITHUB_API` want it."""
        return self.url + API

    def repo(
        self,
        slug: str,
        files: Mapping[str, bytes] | None = None,
        *,
        private: bool = False,
        fork_of: str | None = None,
        **roles: str,
    ) -> Repo:
        """A new repository with one commit of `files` on main. `roles` are login=role; "_" in a login stands for "-".

        A fork starts with all that its parent has.
        """
        owner, _, name = slug.partition("/")
        parent = self.world.repo(fork_of) if fork_of else None
        path = self.world.root / f"{slug}.git"
        bare = Bare.create(path, None if parent else {"README.md": b"# repository\n"} if files is None else files)
        if parent is not None:
            bare.git("fetch", "--quiet", str(parent.bare.path), "+refs/heads/*:refs/heads/*")
        who = self.world.user(owner)
        made = Repo(who, name, self.world.next_id(), bare, private, parent.full_name if parent else None)
        made.roles = {login.replace("_", "-").casefold(): role for login, role in roles.items()}
        for login in made.roles:
            self.world.user(login)
        self.world.repos[slug.casefold()] = made
        return made

    def token(
        self,
        login: str,
        kind: Kind = "classic",
        permissions: Mapping[str, str] | None = None,
        scopes: str = "repo, workflow",
    ) -> str:
        """A new token of an account. `permissions` are for fine-grained ones, such as {"contents": "write"}."""
        prefix = {"classic": "ghp", "fine-grained": "github_pat", "installation": "ghs"}[kind]
        value = f"{prefix}_{login.removesuffix('[bot]')}{self.world.next_id()}"
        bot = login.endswith("[bot]")
        user = self.world.user(login, "Bot" if bot else "User")
        self.world.tokens[value] = Token(value, user, kind, permissions, scopes)
        return value

    def actions_token(self, slug: str, **permissions: str) -> str:
        """What a workflow run gets as GITHUB_TOKEN: bound to its repository and to the job's permissions."""
        value = self.token("github-actions[bot]", "installation", permissions)
        self.world.tokens[value].repositories = frozenset({slug.casefold()})
        return value

    def team(self, org: str, slug: str, members: Mapping[str, str], **roles: str) -> Team:
        """A team: members are login → "active" or "pending", `roles` repository's name in the same owner → role."""
        made = Team(org, slug, self.world.next_id())
        made.members = {login.casefold(): state for login, state in members.items()}
        made.roles = {f"{org}/{name}".casefold(): role for name, role in roles.items()}
        for login in members:
            self.world.user(login)
        self.world.teams[(org.casefold(), slug.casefold())] = made
        return made

    def app(self, slug: str, public_key: str, permissions: Mapping[str, str], repository: str) -> App:
        """A GitHub App, installed on one repository."""
        bot = self.world.user(f"{slug}[bot]", "Bot")
        made = App(self.world.next_id(), slug, public_key, permissions, bot)
        made.installations[self.world.next_id()] = repository.casefold()
        self.world.apps[made.id] = made
        return made

    def reset(self) -> None:
        """Forget planned faults and what was written down; repositories and accounts stay."""
        self.faults.clear()
        self.journal.answers.clear()
        self.journal.unknown.clear()


__all__ = ["API", "Repo", "Stub", "Team", "User", "stub_server"]


@contextmanager
def stub_server(root: Path) -> Iterator[Stub]:
    """Run the stub; its repositories lie below `root`."""
    world, journal = World(root), Journal()
    faults = Faults(build(world, journal))
    with served(faults) as url:
        world.base = url
        yield Stub(url, world, faults, journal)
