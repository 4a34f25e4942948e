"""Emulators of GitHub by others, each in its own process, and what each cannot do."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.github.bare import Bare, git_environment
from tests.github.faults import Faults
from tests.github.places import ALICE_ON_GITHUB, BOT_LOGIN, Account, GitHubPlace, first_files
from tests.github.relay import API, Relay, in_pulls
from tests.github.serving import served
from tests.github.tools import EMULATE, MYWORLD, node_environment, node_folder, npm_package, python_env

OWNER = "octo"
EMULATORS = ("emulate", "myworld")
PEOPLE = (OWNER, BOT_LOGIN, "alice", "bob")


@dataclass(slots=True)
class Running:
    """An emulator behind the relay, ready for repositories."""

    name: str
    url: str
    root: Path
    faults: Faults
    relay: Relay
    emulator: Emulate | Myworld

    def place(self, repository: str, folder: Path) -> GitHubPlace:
        """A fresh repository, which the emulator knows."""
        slug = f"{OWNER}/{repository}"
        bare = Bare.create(self.root / f"{slug}.git", first_files(ALICE_ON_GITHUB))
        tokens = self.emulator.create(slug, bare, self.relay)
        account = Account(slug, self.url + API, self.url, tokens)
        return GitHubPlace(self.name, account, bare, self.faults, folder)


@contextmanager
def running(name: str, root: Path) -> Iterator[Running]:
    """Start one of the emulators by name; its repositories and its log lie below `root`."""
    start = {"emulate": emulate, "myworld": myworld}[name]
    with start(root) as emulator:
        tokens: dict[str, str] = {}
        relay = Relay(emulator, root, tokens)
        faults = Faults(relay)
        with served(faults) as url:
            relay.base = url
            yield Running(name, url, root, faults, relay, emulator)
        relay.close()


# emulate, from npm


class Emulate:
    """vercel's `emulate`. Its Git objects have Git's own ids."""

    def __init__(self, url: str) -> None:
        self.api, self.named = url, url.encode()
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token_of(OWNER)}"}, timeout=60)

    def create(self, slug: str, bare: Bare, relay: Relay) -> Mapping[str, str]:
        """A repository to which all may write. Login → token."""
        self._sent("POST", "/user/repos", {"name": slug.partition("/")[2]})
        for login in PEOPLE[1:]:
            self._sent("PUT", f"/repos/{slug}/collaborators/{login}", {"permission": "push"})
        relay.add(slug, bare)
        tokens = {login: token_of(login) for login in PEOPLE}
        relay.tokens.update({token: login for login, token in tokens.items()})  # type: ignore[attr-defined]
        return tokens

    def bring_commit(self, slug: str, bare: Bare, sha: str, parents: list[str]) -> str:
        root = f"/repos/{slug}/git"
        entries = []
        for line in filter(None, bare.raw("ls-tree", "-r", "-z", sha).decode().split("\0")):
            (mode, kind, blob), path = line.partition("\t")[0].split(), line.partition("\t")[2]
            if kind == "blob":
                self._blob(root, bare, blob)
            entries.append({"path": path, "mode": mode, "type": kind, "sha": blob})
        tree = self._sent("POST", f"{root}/trees", {"tree": entries})["sha"]
        assert tree == bare.git("rev-parse", f"{sha}^{{tree}}")
        fields = bare.git("log", "-1", "--format=%an%x00%ae%x00%aI%x00%cn%x00%ce%x00%cI", sha).split("\0")
        author, committer = (dict(zip(("name", "email", "date"), fields[n : n + 3], strict=True)) for n in (0, 3))
        message = bare.raw("cat-file", "commit", sha).decode().partition("\n\n")[2]
        body = {"message": message, "tree": tree, "parents": parents, "author": author, "committer": committer}
        return str(self._sent("POST", f"{root}/commits", body)["sha"])

    def _blob(self, root: str, bare: Bare, blob: str) -> None:
        import base64

        content = base64.b64encode(bare.raw("cat-file", "blob", blob)).decode()
        assert self._sent("POST", f"{root}/blobs", {"content": content, "encoding": "base64"})["sha"] == blob

    def set_branch(self, slug: str, name: str, sha: str | None, known: bool) -> None:
        refs, ref = f"/repos/{slug}/git/refs", f"/repos/{slug}/git/refs/heads/{name}"
        if sha is None:
            self._sent("DELETE", ref)
        elif known:
            self._sent("PATCH", ref, {"sha": sha, "force": True})
        else:
            self._sent("POST", refs, {"ref": f"refs/heads/{name}", "sha": sha})

    def complete(self, slug: str, bare: Bare, data: Any) -> Any:
        """It leaves the head of a pull request where it was when it was opened: a push moves nothing."""

        def follow(pull: dict[str, Any]) -> None:
            if pull["state"] == "open":
                pull["head"]["sha"] = bare.tip(f"refs/heads/{pull['head']['ref']}") or pull["head"]["sha"]
                pull["base"]["sha"] = bare.tip(f"refs/heads/{pull['base']['ref']}") or pull["base"]["sha"]

        return in_pulls(data, follow)

    def _sent(self, verb: str, path: str, body: Any = None) -> Any:
        return _checked(self._http.request(verb, path, json=body))


def token_of(login: str) -> str:
    """The one token of an account of `emulate`."""
    return f"ghp_{login.replace('-', '')}"


@contextmanager
def emulate(folder: Path) -> Iterator[Emulate]:
    """Start it on a free port of loopback."""
    port = free_port()
    seed = {
        "tokens": {token_of(login): {"login": login, "scopes": ["repo", "user"]} for login in PEOPLE},
        "github": {"users": [{"login": login, "name": login, "email": f"{login}@example.org"} for login in PEOPLE]},
    }
    (folder / "emulate.yaml").write_text(json.dumps(seed))  # JSON is YAML
    program = npm_package(EMULATE) / "dist/index.js"
    command = [str(node_folder() / "node"), str(program), "start", "--service", "github", "--port", str(port)]
    with _process([*command, "--seed", "emulate.yaml"], folder, node_environment(), port):
        yield Emulate(f"http://localhost:{port}")


# myworld, from PyPI


class Myworld:
    """`myworld`, without its gateway: it takes the same calls at /gw/api.github.com, without TLS in between.

    Each repository is a world of its own. Commits have ids of its own making.
    """

    named = b"https://api.github.com"

    def __init__(self, url: str) -> None:
        self.api = f"{url}/gw/api.github.com"
        self._http = httpx.Client(base_url=url, timeout=60)
        self._worlds: dict[str, tuple[str, str]] = {}
        """Repository → (run, a token)."""

    def create(self, slug: str, bare: Bare, relay: Relay) -> Mapping[str, str]:
        """A world with the repository in its first state. Login → token."""
        first = bare.tip("refs/heads/main")
        assert first is not None
        seed = {
            "viewer": BOT_LOGIN,
            "users": [{"login": login, "name": login, "email": f"{login}@example.org"} for login in PEOPLE],
            "repos": [{"name": slug, "files": _texts(bare, first), "author": OWNER}],
        }
        spec = {
            "name": slug.replace("/", "-"),
            "task": "none",
            "servers": {"github": {"seed": seed}},
            "agents": {login: {"as": login, "task": "none"} for login in PEOPLE},
        }
        made = _checked(self._http.post("/envs", json={"spec": spec}))
        tokens = {login: made["credentials"][login]["github_token"] for login in PEOPLE}
        self._worlds[slug] = (made["id"], tokens[OWNER])
        repository = relay.add(slug, bare)
        repository.pair(first, self._sent("GET", slug, "/git/ref/heads/main")["object"]["sha"])
        repository.branches = {"main": first}
        relay.tokens.update({token: login for login, token in tokens.items()})  # type: ignore[attr-defined]
        return tokens

    def bring_commit(self, slug: str, bare: Bare, sha: str, parents: list[str]) -> str:
        """As its world lets teammates push: on a branch, one commit after another. It cannot remove files."""
        branch = f"relay/{sha}"
        self._sent("POST", slug, "/git/refs", {"ref": f"refs/heads/{branch}", "sha": parents[0]})
        author = bare.git("log", "-1", "--format=%ae", sha).partition("@")[0]
        params = {"repo": slug, "branch": branch, "author": author, "message": sha, "files": _changed(bare, sha)}
        event = {"server": "github", "action": "push_commit", "params": params}
        _checked(self._http.post(f"/envs/{self._worlds[slug][0]}/events", json=event))
        made = self._sent("GET", slug, f"/git/ref/heads/{branch}")["object"]["sha"]
        self._sent("DELETE", slug, f"/git/refs/heads/{branch}")
        return str(made)

    def set_branch(self, slug: str, name: str, sha: str | None, known: bool) -> None:
        if sha is None:
            self._sent("DELETE", slug, f"/git/refs/heads/{name}")
        elif known:
            self._sent("PATCH", slug, f"/git/refs/heads/{name}", {"sha": sha, "force": True})
        else:
            self._sent("POST", slug, "/git/refs", {"ref": f"refs/heads/{name}", "sha": sha})

    def complete(self, slug: str, bare: Bare, data: Any) -> Any:
        """It does not say in which repository a branch is; GitHub leaves that out where a fork is gone."""

        def name(pull: dict[str, Any]) -> None:
            for side in ("head", "base"):
                pull[side]["repo"] = {"full_name": slug, "name": slug.partition("/")[2]}

        return in_pulls(data, name)

    def _sent(self, verb: str, slug: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self._worlds[slug][1]}"}
        url = f"/gw/api.github.com/repos/{slug}{path}"
        return _checked(self._http.request(verb, url, json=body, headers=headers))


def _texts(bare: Bare, sha: str) -> dict[str, str]:
    paths = filter(None, bare.raw("ls-tree", "-r", "-z", "--name-only", sha).decode().split("\0"))
    return {path: (bare.file(sha, path) or b"").decode("latin-1") for path in paths}


def _changed(bare: Bare, sha: str) -> dict[str, str]:
    """The files that a commit changed since its first parent."""
    out = bare.raw("diff-tree", "-r", "-z", "--name-only", "--diff-filter=d", f"{sha}^1", sha).decode()
    return {path: (bare.file(sha, path) or b"").decode("latin-1") for path in filter(None, out.split("\0"))}


@contextmanager
def myworld(folder: Path) -> Iterator[Myworld]:
    """Start it on a free port of loopback."""
    port = free_port()
    environment = {**git_environment(), "HOME": str(folder)}
    command = [str(python_env(MYWORLD) / "myworld"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with _process([*command, "--log-level", "warning"], folder, environment, port):
        yield Myworld(f"http://127.0.0.1:{port}")


# Processes


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def _process(command: list[str], folder: Path, environment: Mapping[str, str], port: int) -> Iterator[None]:
    """A server for as long as it is needed. RuntimeError with its last words if it does not come up."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
            if process.poll() is not None:
                break
        else:
            raise RuntimeError(f"{command[0]} does not listen: {(folder / 'log').read_text()[-2000:]}")
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended: {(folder / 'log').read_text()[-2000:]}")
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _checked(got: httpx.Response) -> Any:
    if got.is_error:
        raise RuntimeError(f"{got.request.method} {got.request.url}: {got.status_code} {got.text[:500]}")
    return got.json() if got.content else None
