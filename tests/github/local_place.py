"""The local forge as a place for the contract of all forges."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from metainfer.forge.local import LocalForge
from metainfer.forge.plumbing import Repository
from metainfer.forge.protocol import Identity, PullRequest
from metainfer.forge.records import now
from metainfer.forge.setup import create_local_forge
from tests.forge.engines import ALICE, BOB
from tests.github.bare import Bare
from tests.github.places import first_files


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
