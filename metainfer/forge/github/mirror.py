"""A bare copy of the repository, kept for as long as its folder is: commits are read and built here, then pushed.

What GitHub's API says of a branch may lag behind; what `git ls-remote` and a push with a lease say does not.
"""

from __future__ import annotations

import base64
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from metainfer.errors import InputError, MachineError
from metainfer.forge.github.address import GitHubAddress
from metainfer.forge.github.errors import DEFAULT_SECONDARY_WAIT_S, GitHubRefusedError
from metainfer.forge.markers import BRANCH_PREFIX, one_line
from metainfer.forge.plumbing import Repository, run_git

ATTEMPTS = 3
_STALLED_S = 60
"""A transfer that brings under a kilobyte per second for so long is given up."""
_TRANSIENT = (
    b"error: 5",
    b"hung up",
    b"early EOF",
    b"RPC failed",
    b"Connection reset",
    b"Could not resolve",
    b"timed out",
    b"cannot lock ref",
    b"Unable to create",
)
"""What Git says when the line broke, or another process was at the same refs."""
_NOT_THERE = (b"not our ref", b"unadvertised object", b"couldn't find remote ref")
"""What the server says of a commit that it does not have, or does not give out."""


class Mirror:
    """A bare repository at `git_dir` with the base branches, the bot's branches and the tags of the one on GitHub."""

    def __init__(
        self,
        address: GitHubAddress,
        git_dir: Path,
        token: Callable[[], str],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.address = address
        self.repo = Repository(git_dir)
        self._token = token
        self._sleep = sleep

    # Reading

    def fetch(self, base: str) -> None:
        """Bring the copy up to date. InputError if there is no branch `base`, MachineError if Git cannot get there."""
        ours = f"refs/heads/{BRANCH_PREFIX}*"
        specs = [f"+refs/heads/{base}:refs/heads/{base}", f"+{ours}:{ours}", "+refs/tags/*:refs/tags/*"]
        # Pruning is limited to what the lines above name, so another base that was fetched before stays.
        done = self._remote(["fetch", "--quiet", "--prune", "--no-write-fetch-head", self.address.git_url, *specs])
        if b"couldn't find remote ref" in done.stderr:
            raise InputError(f"{self.address.slug} has no branch {base!r}")
        self._must(done, "fetch")

    def has(self, commit: str) -> bool:
        """Whether a commit is here, after trying to get it from GitHub, which serves any that it still has.

        MachineError and the like where GitHub gave no answer: that says nothing about the commit.
        """
        if self.repo.commit_at(commit):
            return True
        done = self._remote(["fetch", "--quiet", "--no-write-fetch-head", self.address.git_url, commit])
        if done.returncode and not any(words in done.stderr for words in _NOT_THERE):
            self._must(done, f"fetch {commit[:12]}")
        return self.repo.commit_at(commit) is not None

    # Writing

    def push(self, ref: str, new: str, old: str | None) -> bool:
        """Move `ref` on GitHub from `old` (None: it must not exist) to `new`. False if it is not there any more.

        A push whose answer is lost is looked for before anything else is done.
        """
        lease = f"--force-with-lease={ref}:{old or ''}"
        command = ["push", "--porcelain", "--no-verify", lease, self.address.git_url, f"{new}:{ref}"]
        for attempt in range(ATTEMPTS):
            done = self._git(command)
            # Looked for whatever was said: the push may have been carried out, and its answer lost.
            if done.returncode == 0 or self.tip(ref) == new:
                return True
            said = (done.stdout + done.stderr).decode(errors="replace")
            if any(words in said for words in ("stale info", "already exists", "cannot lock ref", "fetch first")):
                return False
            if "[remote rejected]" in said or "protected branch" in said:
                raise GitHubRefusedError(f"{self.address.slug} refused the push to {ref}: {_reason(said)}")
            if attempt + 1 == ATTEMPTS or not self._waited(done.stderr, attempt):
                break
        self._must(done, f"push to {ref}")
        return False

    def tip(self, ref: str) -> str | None:
        """Where a ref stands on GitHub now; None if it is not there."""
        done = self._remote(["ls-remote", self.address.git_url, ref])
        self._must(done, f"look up {ref}")
        lines = [line.split("\t") for line in done.stdout.decode().splitlines()]
        return next((sha for sha, name in lines if name == ref), None)

    # Helpers

    def _prepare(self) -> None:
        git_dir = self.repo.git_dir
        if (git_dir / "HEAD").exists():
            return
        git_dir.mkdir(parents=True, exist_ok=True)
        done = run_git(["init", "--quiet", "--bare", "--template=", str(git_dir)])
        if done.returncode:
            raise MachineError(f"{git_dir}: {done.stderr.decode(errors='replace').strip()}")

    def _remote(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        """A command that reads from GitHub, again if the connection broke."""
        done = self._git(arguments)
        for attempt in range(ATTEMPTS - 1):
            if done.returncode == 0 or not self._waited(done.stderr, attempt):
                break
            done = self._git(arguments)
        return done

    def _git(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        self._prepare()
        return run_git([f"--git-dir={self.repo.git_dir}", *arguments], extra=self._transport())

    def _waited(self, said: bytes, attempt: int) -> bool:
        """Wait, if what Git said is a reason to try again; False if it is none."""
        if b"error: 429" in said:  # how long GitHub asks to wait, Git does not tell
            self._sleep(DEFAULT_SECONDARY_WAIT_S)
            return True
        if any(words in said for words in _TRANSIENT):
            self._sleep((0.02 if self.address.is_local else 1.0) * 2**attempt)
            return True
        return False

    def _transport(self) -> dict[str, str]:
        """Settings for one command, by environment: a token in an argument or a URL could be read by anybody."""
        basic = base64.b64encode(f"x-access-token:{self._token()}".encode()).decode()
        settings = {
            f"http.{self.address.server}/.extraHeader": f"Authorization: Basic {basic}",
            "credential.helper": "",
            "http.followRedirects": "false",
            "http.lowSpeedLimit": "1000",
            "http.lowSpeedTime": str(_STALLED_S),
            "core.hooksPath": "/dev/null",
            "gc.auto": "0",
        }
        pairs = enumerate(settings.items())
        named = {f"GIT_CONFIG_{part}_{n}": item[at] for n, item in pairs for at, part in enumerate(("KEY", "VALUE"))}
        return {"GIT_CONFIG_COUNT": str(len(settings)), **named}

    def _must(self, done: subprocess.CompletedProcess[bytes], what: str) -> None:
        if done.returncode == 0:
            return
        said = done.stderr.decode(errors="replace")
        where = f"git {what} at {self.address.git_url}"
        if "Authentication failed" in said or "could not read Username" in said or "error: 401" in said:
            raise InputError(f"{where}: the credentials are not valid there, or lack the right to its contents")
        if "error: 403" in said:
            raise GitHubRefusedError(f"{where}: not allowed; the token needs contents: write")
        if "not found" in said.casefold() or "error: 404" in said:
            raise InputError(f"{where}: no such repository, or the token may not see it")
        raise MachineError(f"{where}: {_reason(said)}; try again, a second run goes on where this one stopped")


def _reason(said: str) -> str:
    """The lines that say why, without the progress around them."""
    lines = [line.strip() for line in said.splitlines()]
    telling = [line for line in lines if line.startswith(("remote:", "error:", "fatal:", "!"))]
    return one_line("; ".join(telling or lines), 400)
