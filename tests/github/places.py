"""Places where the bot can propose engines: the local forge, and GitHub's forge on servers that stand in for GitHub.

Each place is one fresh repository with people who may write to it. What a test of the `Forge` protocol needs beside
the protocol itself is here: pushes, pull requests made by hand, and a look at what was written.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from metainfer.forge.github.address import GitHubAddress
from metainfer.forge.github.forge import GitHubForge
from metainfer.forge.local import LocalForge
from metainfer.forge.markers import branch_of
from metainfer.forge.plumbing import Repository
from metainfer.forge.protocol import Forge, Identity, PublishOutcome, PublishRequest, PullRequest
from metainfer.forge.records import now
from metainfer.forge.setup import create_local_forge
from tests.forge import engines
from tests.forge.engines import ALICE, BOB, ENGINE
from tests.github.bare import Bare, Who
from tests.github.faults import Call, Faults
from tests.github.stub import Stub

ALICE_ON_GITHUB = Identity("Alice Example", "alice@example.org", "@alice")
BOB_ON_GITHUB = Identity("Bob Example", "bob@example.org", "@bob")
BOT_LOGIN = "metainfer-bot"
BRANCH = f"refs/heads/{branch_of(ENGINE)}"
CONTRACT = "ckb/family/rmsnorm/contract.yaml"


def first_files(owner: Identity) -> dict[str, bytes]:
    """What main holds at first: one piece of knowledge, and CODEOWNERS that gives everything to `owner`."""
    return {
        "README.md": b"# repository\n",
        CONTRACT: b"id: family/rmsnorm\nversion: 1\n",
        ".github/CODEOWNERS": f"* {owner.label}\n".encode(),
    }


class Place(Protocol):
    """One repository. `alice` owns its code; she and `bob` may write."""

    name: str
    bare: Bare
    """The repository as Git holds it, behind the server's back."""
    alice: Identity
    bob: Identity

    @property
    def forge(self) -> Forge:
        """The bot's."""
        ...

    def another(self) -> Forge:
        """The bot's in another process, which knows nothing of the first."""
        ...

    def person(self, who: Identity) -> Forge:
        """The forge as a person uses it. The methods of the protocol still want `who`."""
        ...

    def open_by_hand(self, who: Identity, branch: str, title: str, body: str = "Mine.") -> int:
        """A person's own pull request from a branch that is there. Returns its number."""
        ...

    def writes(self) -> list[str]:
        """Everything written since the place was made, in a form that grows with each write."""
        ...

    def interrupt(self, act: Callable[[], object], *, late: bool) -> None:
        """Do something once, after the bot looked and before it moves a branch; `late`: while it does so."""
        ...


class Acting:
    """What tests do at any place, in few words."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self.place, name)

    def base(self) -> str:
        """Where main is."""
        tip = self.place.bare.tip("refs/heads/main")
        assert tip is not None
        return tip

    def tip(self) -> str | None:
        """Where the engine's branch is."""
        return self.place.bare.tip(BRANCH)

    def request(self, input_hash: str = "sha256:aa", **parts: Any) -> PublishRequest:
        """To propose the small engine on top of what main is now."""
        parts.setdefault("base_sha", self.base())
        return engines.request(self.place.forge, input_hash, **parts)

    def publish(self, input_hash: str = "sha256:aa", **parts: Any) -> PublishOutcome:
        """Have the bot propose it."""
        return self.place.forge.publish(self.request(input_hash, **parts))

    def push(self, branch: str, files: Mapping[str, bytes | None], who: Identity = ALICE) -> str:
        """A person's commit on a branch, new branches starting at main."""
        start = self.place.bare.tip("refs/heads/main")
        return self.place.bare.commit(branch, files, "A person's work\n", Who(who.name, who.email), start)

    def by_hand(self) -> str:
        """A person's commit on the engine's branch."""
        return self.push(branch_of(ENGINE), {f"{engines.FOLDER}README.md": b"# by hand\n"})

    def approve(self, number: int = 1, who: Identity | None = None, head: str | None = None) -> PullRequest:
        """In Bob's name, if nobody else's."""
        who = who or self.place.bob
        return self.place.person(who).approve(number, who, head)

    def close(self, number: int = 1, comment: str | None = None) -> PullRequest:
        """In Bob's name."""
        return self.place.person(self.place.bob).close(number, self.place.bob, comment)

    def merge(self, number: int = 1) -> str:
        """Approve and merge in Alice's name. The commit on main."""
        alice = self.place.alice
        self.approve(number, alice)
        return self.place.person(alice).merge(number, alice).commit

    def states(self) -> list[str]:
        """The states of all pull requests, in the order of their numbers."""
        return [pull.state for pull in self.place.forge.list("all")]

    @contextmanager
    def nothing_written(self) -> Iterator[None]:
        """No ref moves and no call that writes is made meanwhile."""
        before = self.place.writes()
        yield
        assert self.place.writes() == before


def together(acts: Sequence[Callable[[], object]]) -> list[object]:
    """Run all at once, as far as threads and the processes that they start allow; what each returned, in order."""
    barrier = threading.Barrier(len(acts))
    results: list[object] = [None] * len(acts)

    def run(n: int) -> None:
        barrier.wait()
        try:
            results[n] = acts[n]()
        except BaseException as error:
            results[n] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return results


# The local forge


class LocalPlace:
    """A bare repository on this machine. Anybody acts in anybody's name."""

    name = "local"
    alice, bob = ALICE, BOB

    def __init__(self, git_dir: Path) -> None:
        self.bare = Bare(git_dir)
        self._forge = LocalForge(git_dir)

    @property
    def forge(self) -> LocalForge:
        return self._forge

    def another(self) -> LocalForge:
        return LocalForge(self.bare.path)

    def person(self, who: Identity) -> LocalForge:
        return self._forge

    def open_by_hand(self, who: Identity, branch: str, title: str, body: str = "Mine.") -> int:
        store = self._forge.store
        number = len(store.all()) + 1
        head, base = self.bare.tip(f"refs/heads/{branch}"), self.bare.tip("refs/heads/main")
        assert head
        assert base
        pull = PullRequest(
            number=number,
            engine="",
            branch=branch,
            base="main",
            base_sha=base,
            title=title,
            state="open",
            head=head,
            input_hash="",
            has_knowledge=False,
            created=now(),
            updated=now(),
            body=body,
        )
        assert self._forge.repo.move_refs([store.change(pull, None, "opened", who)], "open")
        return number

    def interrupt(self, act: Callable[[], object], *, late: bool) -> None:
        repo = InterruptedRepository(self.bare.path, "update-ref" if late else "commit-tree", act)
        self._forge.repo = self._forge.store.repo = repo

    def writes(self) -> list[str]:
        return sorted(f"{name} {sha}" for name, sha in self.bare.branches("refs").items())


class InterruptedRepository(Repository):
    """Lets a rival act once, just before the first change of a kind."""

    def __init__(self, git_dir: Path, kind: str, rival: Callable[[], object]) -> None:
        super().__init__(git_dir)
        self._kind, self._rivals = kind, [rival]

    def _mutate(self, arguments: Sequence[str], stdin: bytes, extra: Mapping[str, str] | None) -> bytes | None:
        if arguments[0] == self._kind and self._rivals:
            self._rivals.pop()()
        return super()._mutate(arguments, stdin, extra)


def local_template(folder: Path) -> Path:
    """A local forge made by our own command, to be copied."""
    source = folder / "source"
    for path, data in first_files(ALICE).items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(data)
    who = ("-c", "user.name=Source Owner", "-c", "user.email=owner@example.org")
    for command in (["init", "--quiet", "--initial-branch=main"], ["add", "."], ["commit", "--quiet", "-m", "First"]):
        subprocess.run(["git", "-C", str(source), *who, *command], check=True, capture_output=True)
    create_local_forge(source, folder / "forge.git")
    return folder / "forge.git"


def local_place(template: Path, folder: Path) -> LocalPlace:
    """A fresh copy."""
    shutil.copytree(template, folder / "forge.git")
    return LocalPlace(folder / "forge.git")


# GitHub


@dataclass(frozen=True, slots=True)
class Account:
    """A repository on a server, and the tokens of those who use it."""

    slug: str
    api: str
    server: str
    tokens: Mapping[str, str]
    """Login → token, the bot's among them."""


class GitHubPlace:
    """A repository on a server that answers as GitHub does. Who acts is whose token it is."""

    alice, bob = ALICE_ON_GITHUB, BOB_ON_GITHUB

    def __init__(self, name: str, account: Account, bare: Bare, faults: Faults, folder: Path) -> None:
        self.name, self.bare, self.faults = name, bare, faults
        self.account, self.folder = account, folder
        self._numbers = itertools.count(1)
        self._people: dict[str, GitHubForge] = {}

    @property
    def forge(self) -> GitHubForge:
        return self._of(BOT_LOGIN)

    def another(self) -> GitHubForge:
        return self._open(BOT_LOGIN, f"mirror-{next(self._numbers)}")

    def person(self, who: Identity) -> GitHubForge:
        return self._of(who.label.removeprefix("@"))

    def open_by_hand(self, who: Identity, branch: str, title: str, body: str = "Mine.") -> int:
        repo = self.person(who).connection.repo
        return repo.create_pull(base="main", head=branch, title=title, body=body).number

    def interrupt(self, act: Callable[[], object], *, late: bool) -> None:
        # What is there was fetched before the API is asked; a push asks where the branch is, and then moves it.
        method, path = ("POST", "/git-receive-pack$") if late else ("GET", "/pulls$")
        self.faults.before(method, f"{self.account.slug}.*{path}", lambda: act() and None)

    def writes(self) -> list[str]:
        return [str(call) for call in self.faults.calls if writes(call) and self.account.slug in call.path]

    def calls(self) -> list[Call]:
        """Every call for this repository, reads among them."""
        return [call for call in self.faults.calls if self.account.slug in call.path]

    def sign_in(self, login: str, token: str) -> None:
        """Let an account use another token from now on, or be one of those who are here."""
        self.account = replace(self.account, tokens={**self.account.tokens, login: token})
        self._people.pop(login, None)

    def _of(self, login: str) -> GitHubForge:
        if login not in self._people:
            # A mirror holds nothing but a copy, so people can share one.
            self._people[login] = self._open(login, "bots" if login == BOT_LOGIN else "peoples")
        return self._people[login]

    def _open(self, login: str, mirror: str) -> GitHubForge:
        owner, _, name = self.account.slug.partition("/")
        address = GitHubAddress(owner, name, self.account.api, self.account.server)
        token = {"METAINFER_GITHUB_TOKEN": self.account.tokens[login]}
        return GitHubForge.open(address, self.folder / mirror, token)


def writes(call: Call) -> bool:
    """Whether a call can change anything. What Git fetches, it asks for by POST."""
    return call.method not in ("GET", "HEAD") and not call.path.endswith("/git-upload-pack")


def stub_place(stub: Stub, slug: str, folder: Path) -> GitHubPlace:
    """A repository on the strict stub."""
    roles = {BOT_LOGIN.replace("-", "_"): "write", "alice": "write", "bob": "write"}
    repo = stub.repo(slug, first_files(ALICE_ON_GITHUB), **roles)
    tokens = {login: stub.token(login) for login in (BOT_LOGIN, "alice", "bob")}
    return GitHubPlace("stub", Account(slug, stub.api_url, stub.url, tokens), repo.bare, stub.faults, folder)
