"""Puts a GitHub API that knows nothing of Git in front of Git: one server, as the stub is.

The emulators of others speak no Git. Before each call of the API the relay tells the emulator where the branches of the
bare repository are; it makes a merge that the emulator decided on in the bare repository too; and it translates the ids
of commits where the emulator makes its own. What an answer lacks that GitHub gives is named by each emulator in
`complete`. Nothing is decided here.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import httpx
from starlette.concurrency import run_in_threadpool

from tests.github.bare import Bare, Who
from tests.github.git_server import GitApp
from tests.github.serving import App, Receive, Scope, Send, answer, read_body

API = "/api/v3"
_SHA = re.compile(rb"\b[0-9a-f]{40}\b")
_REPO = re.compile(r"/repos/([^/]+/[^/]+)(/.*)?")
_MERGE = re.compile(r"/pulls/\d+/merge")
_PASSED_ON = ("authorization", "accept", "content-type", "x-github-api-version", "user-agent")


class Emulator(Protocol):
    """Somebody else's emulator of the API, running."""

    api: str
    """Where its API is."""
    named: bytes
    """What URLs in its answers begin with."""

    def bring_commit(self, slug: str, bare: Bare, sha: str, parents: list[str]) -> str:
        """Make it know a commit, whose parents it knows by these ids. The id that it has there."""
        ...

    def set_branch(self, slug: str, name: str, sha: str | None, known: bool) -> None:
        """Put a branch at one of its commits, or remove it (None). `known`: it has a branch of that name."""
        ...

    def complete(self, slug: str, bare: Bare, data: Any) -> Any:
        """An answer with what it lacks that GitHub gives."""
        ...


class Repository:
    """What the relay has told the emulator of one repository. Ids of commits: ours are Git's, theirs the emulator's."""

    def __init__(self, slug: str, bare: Bare) -> None:
        self.slug, self.bare = slug, bare
        self.theirs: dict[str, str] = {}
        self.ours: dict[str, str] = {}
        self.branches: dict[str, str] = {}
        self.lock = threading.Lock()

    def pair(self, ours: str, theirs: str) -> None:
        self.theirs[ours], self.ours[theirs] = theirs, ours

    def tell(self, emulator: Emulator) -> None:
        """Bring the emulator to where Git is."""
        now = self.bare.branches()
        if now == self.branches:
            return
        known = [f"^{sha}" for sha in self.branches.values()]
        new = self.bare.git("rev-list", "--reverse", "--topo-order", *now.values(), *known, "--").split()
        for sha in new:
            if sha not in self.theirs:
                parents = self.bare.git("log", "-1", "--format=%P", sha).split()
                self.pair(sha, emulator.bring_commit(self.slug, self.bare, sha, [self.theirs[p] for p in parents]))
        for name in self.branches.keys() | now.keys():
            if self.branches.get(name) != now.get(name):
                there = now.get(name)
                emulator.set_branch(self.slug, name, self.theirs[there] if there else None, name in self.branches)
        self.branches = now


class Relay:
    """The ASGI application. Repositories lie at `root/owner/name.git`; all are public.

    Every token of `tokens` may write to all of them.
    """

    def __init__(self, emulator: Emulator, root: Path, tokens: Mapping[str, str]) -> None:
        self.emulator = emulator
        self.tokens = tokens
        """Token → login."""
        self.base = ""
        """This server's own URL, set once it runs."""
        self._repositories: dict[str, Repository] = {}
        self._git: App = GitApp(
            root, lambda token, slug, writes: 200 if token in tokens or not (token or writes) else 401
        )
        self._http = httpx.Client(timeout=60)

    def add(self, slug: str, bare: Bare) -> Repository:
        """Serve a repository, which the emulator has under the same name, empty or paired by the caller."""
        made = self._repositories[slug] = Repository(slug, bare)
        return made

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/api/"):
            await self._git(scope, receive, send)
            return
        body = await read_body(receive)
        got = await run_in_threadpool(self._call, scope, body)
        kept = ("content-type", "link", "retry-after", "location")
        headers = [(name.encode(), self._here(value.encode())) for name, value in got[1].items() if name in kept]
        await answer(send, got[0], headers, got[2])

    def _call(self, scope: Scope, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        path = scope["raw_path"].decode("latin-1").removeprefix(API).replace("/api/uploads", "")
        found = _REPO.fullmatch(path)
        repository = self._repositories.get(found.group(1)) if found else None
        if repository is None:
            got = self._forward(scope, path, body)
            return got.status_code, got.headers, self._here(got.content)
        with repository.lock:
            repository.tell(self.emulator)
            got = self._forward(scope, path, _translated(body, repository.theirs))
            data = self._here(got.content)
            if scope["method"] == "PUT" and _MERGE.fullmatch(found.group(2) or "") and got.status_code == 200:  # type: ignore[union-attr]
                self._merge(repository, scope, json.loads(body), got.json())
            data = _translated(data, repository.ours)
            if got.status_code < 300 and got.headers.get("content-type", "").startswith("application/json"):
                data = json.dumps(self.emulator.complete(repository.slug, repository.bare, json.loads(data))).encode()
            return got.status_code, got.headers, data

    def _forward(self, scope: Scope, path: str, body: bytes) -> httpx.Response:
        query = scope["query_string"].decode("latin-1")
        url = f"{self.emulator.api}{path}{f'?{query}' if query else ''}"
        sent = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        headers = {name: value for name, value in sent.items() if name in _PASSED_ON}
        return self._http.request(scope["method"], url, content=body, headers=headers)

    def _merge(self, repository: Repository, scope: Scope, wish: Mapping[str, Any], done: Mapping[str, Any]) -> None:
        """What GitHub does in Git when it merges."""
        bare, head = repository.bare, wish["sha"]
        base = bare.tip("refs/heads/main")
        assert base is not None
        tree = bare.merged_tree(base, head)
        assert tree is not None, "the emulator merged what Git cannot"
        commit = bare.commit_tree(tree, [base, head], f"{wish['commit_title']}\n", Who("Merger", "merger@example.org"))
        bare.set_ref("refs/heads/main", commit)
        repository.pair(commit, done["sha"])
        repository.branches["main"] = commit

    def _here(self, data: bytes) -> bytes:
        return data.replace(self.emulator.named, (self.base + API).encode())


def _translated(data: bytes, ids: Mapping[str, str]) -> bytes:
    def other(found: re.Match[bytes]) -> bytes:
        return ids.get(found.group().decode(), found.group().decode()).encode()

    return _SHA.sub(other, data)


def in_pulls(data: Any, change: Callable[[dict[str, Any]], None]) -> Any:
    """Apply `change` to every pull request in an answer."""
    for each in data if isinstance(data, list) else [data]:
        if isinstance(each, dict) and isinstance(each.get("head"), dict) and "base" in each:
            change(each)
    return data
