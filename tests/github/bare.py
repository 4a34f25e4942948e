"""Bare repositories as a Git server holds them, and the few questions and changes that stand-ins need."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROTECTED = "protected-refs"
"""A file in the repository: refs that no push may move, one per line."""
_UPDATE_HOOK = f"""#!/bin/sh
if [ -f {PROTECTED} ] && grep -qxF "$1" {PROTECTED}; then
  echo "error: GH006: Protected branch update failed for $1." >&2
  echo "error: Changes must be made through a pull request." >&2
  exit 1
fi
"""
_SETTINGS = {
    "http.receivepack": "true",
    "uploadpack.allowAnySHA1InWant": "true",  # as on GitHub: any commit that is still there can be fetched
    "receive.hideRefs": "refs/pull",
    "gc.auto": "0",
}
_ENVIRONMENT = {
    "LC_ALL": "C",
    "PATH": os.environ.get("PATH", os.defpath),
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
}


@dataclass(frozen=True, slots=True)
class Who:
    """An author or committer."""

    name: str
    email: str


SOMEBODY = Who("Olive Owner", "olive@example.org")


class GitFailedError(Exception):
    """A Git command came to nothing; the message is what it said."""


def git_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nothing of the caller's but the search path."""
    return {**_ENVIRONMENT, **(extra or {})}


class Bare:
    """One bare repository. Holds no state."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, files: Mapping[str, bytes] | None = None, branch: str = "main") -> Bare:
        """A new repository with one commit on `branch` that holds `files`; none without files."""
        path.mkdir(parents=True)
        bare = cls(path)
        bare.git("init", "--quiet", "--bare", "--template=", f"--initial-branch={branch}")
        with (path / "config").open("a") as config:
            for name, value in _SETTINGS.items():
                section, _, key = name.partition(".")
                config.write(f"[{section}]\n\t{key} = {value}\n")
        (path / "hooks").mkdir(exist_ok=True)
        hook = path / "hooks/update"
        hook.write_text(_UPDATE_HOOK)
        hook.chmod(0o755)
        if files is not None:
            bare.commit(branch, files, "First\n")
        return bare

    def run(
        self, *arguments: str, stdin: bytes = b"", extra: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run Git here, whatever comes of it."""
        command = ["git", f"--git-dir={self.path}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, env=git_environment(extra), check=False)

    def raw(self, *arguments: str, stdin: bytes = b"", extra: Mapping[str, str] | None = None) -> bytes:
        """What a command writes. GitFailedError if it fails."""
        done = self.run(*arguments, stdin=stdin, extra=extra)
        if done.returncode:
            raise GitFailedError(done.stderr.decode(errors="replace").strip() or f"git {arguments[0]} failed")
        return done.stdout

    def git(self, *arguments: str, stdin: bytes = b"", extra: Mapping[str, str] | None = None) -> str:
        """The same as text, without white space at its ends."""
        return self.raw(*arguments, stdin=stdin, extra=extra).decode("utf-8", "replace").strip()

    # Reading

    def tip(self, ref: str) -> str | None:
        """The object that a full ref name holds; None if there is no such ref."""
        done = self.run("rev-parse", "--verify", "--quiet", "--end-of-options", ref)
        return done.stdout.decode().strip() or None

    def commit_at(self, revision: str) -> str | None:
        """The commit that anything names; None if it names none."""
        return self.tip(f"{revision}^{{commit}}")

    def branches(self, prefix: str = "refs/heads") -> dict[str, str]:
        """Refs below `prefix`, by their name without it."""
        lines = self.git("for-each-ref", "--format=%(objectname) %(refname)", prefix).splitlines()
        return {name.removeprefix(f"{prefix}/"): sha for sha, _, name in (line.partition(" ") for line in lines)}

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether `older` is reachable from `newer`."""
        return self.run("merge-base", "--is-ancestor", older, newer).returncode == 0

    def file(self, revision: str, path: str) -> bytes | None:
        """The content of a file; None if there is none."""
        done = self.run("cat-file", "blob", f"{revision}:{path}")
        return done.stdout if done.returncode == 0 else None

    # Writing

    def set_ref(self, ref: str, new: str | None) -> None:
        """Point a ref at an object, or delete it; no hook is asked."""
        self.git("update-ref", "-d", ref) if new is None else self.git("update-ref", ref, new)

    def protect(self, branches: Sequence[str]) -> None:
        """Refuse pushes to these branches, and to no other."""
        (self.path / PROTECTED).write_text("".join(f"refs/heads/{branch}\n" for branch in branches))

    def tree(self, base: str | None, files: Mapping[str, bytes | None]) -> str:
        """The tree of `base` with files set, or removed where None."""
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": f"{folder}/index"}
            self.git("read-tree", *([base] if base else ["--empty"]), extra=index)
            lines = [
                f"0 {'0' * 40}\t{path}\0"
                if data is None
                else f"100644 {self.git('hash-object', '-w', '--stdin', stdin=data)}\t{path}\0"
                for path, data in files.items()
            ]
            self.git("update-index", "-z", "--index-info", stdin="".join(lines).encode(), extra=index)
            return self.git("write-tree", extra=index)

    def merged_tree(self, base: str, other: str) -> str | None:
        """The tree of merging `other` into `base`; None where both changed a file: a stricter rule than GitHub's."""
        start = self.run("merge-base", base, other).stdout.decode().split()
        if not start:
            return None
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": f"{folder}/index"}
            self.git("read-tree", "-i", "-m", "--aggressive", start[0], base, other, extra=index)
            done = self.run("write-tree", extra=index)
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def commit_tree(
        self, tree: str, parents: Sequence[str], message: str, who: Who, committer: Who | None = None
    ) -> str:
        """A commit on no branch."""
        by = committer or who
        extra = {
            "GIT_AUTHOR_NAME": who.name,
            "GIT_AUTHOR_EMAIL": who.email,
            "GIT_COMMITTER_NAME": by.name,
            "GIT_COMMITTER_EMAIL": by.email,
        }
        named = [part for parent in parents for part in ("-p", parent)]
        return self.git("commit-tree", tree, *named, stdin=message.encode(), extra=extra)

    def commit(
        self,
        branch: str,
        files: Mapping[str, bytes | None],
        message: str = "A person's work\n",
        who: Who = SOMEBODY,
        start: str | None = None,
    ) -> str:
        """Commit on a branch as a push would leave it; `start` is where a new branch begins."""
        ref = f"refs/heads/{branch}"
        old = self.tip(ref) or start
        sha = self.commit_tree(self.tree(old, files), [old] if old else [], message, who)
        self.set_ref(ref, sha)
        return sha
