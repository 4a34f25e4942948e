"""A small repository with knowledge, and heads made from it commit by commit. No work tree, real Git."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from metainfer.forge.plumbing import FILE_MODE, Repository
from metainfer.forge.protocol import Identity
from tests.ckb.builders import contract_data

ALICE = Identity("Alice", "alice@example.org")
CODEOWNERS = ".github/CODEOWNERS"
CHECK = "TOLERANCE = 1e-5\n\n\ndef check_a(c):\n    if c.error > TOLERANCE:\n        yield 1\n"


def knowledge() -> dict[str, bytes]:
    mutants = [{"name": n, "file": "exemplars/all.py", "replace": n, "with": "z", "why": "why"} for n in "pq"]
    return {
        "ckb/family/a/contract.yaml": yaml.safe_dump(contract_data("family/a", "A")).encode(),
        "ckb/family/a/check.py": CHECK.encode(),
        "ckb/family/a/mutants.yaml": yaml.safe_dump(mutants).encode(),
        "ckb/family/a/exemplars/all.py": b"p, q = 1, 2\n",
        CODEOWNERS: b"* @everyone\n/ckb/ @alice\n",
        "README.md": b"# x\n",
    }


class Heads:
    """Makes commits on a bare repository's main, and heads beside it."""

    def __init__(self, folder: Path) -> None:
        subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(folder)], check=True)
        self.repo = Repository(folder)
        self.base = self.commit(None, knowledge())

    def commit(
        self,
        parent: str | None,
        files: Mapping[str, bytes | None],
        modes: Mapping[str, tuple[str, str]] | None = None,
    ) -> str:
        """`files` None: removed. `modes`: path → (mode, object id), for what is no plain file."""
        blobs = {path: None if data is None else self.repo.write_blob(data) for path, data in files.items()}
        tree = self.repo.write_tree(parent, blobs) if parent else self.repo.write_tree(None, blobs)
        commit = self.repo.write_commit(tree, [parent] if parent else [], "x\n", ALICE)
        if modes:
            lines = {path: ent for path, ent in self._entries(commit).items() if path not in modes}
            lines |= modes
            tree = self._tree(lines)
            commit = self.repo.write_commit(tree, [parent] if parent else [], "x\n", ALICE)
        return commit

    def head(self, files: Mapping[str, bytes | None], modes: Mapping[str, tuple[str, str]] | None = None) -> str:
        return self.commit(self.base, files, modes)

    def merge(self, parents: Sequence[str], files: Mapping[str, bytes | None]) -> str:
        """A commit of several parents: the first one's files with `files` set, whatever the others say."""
        blobs = {path: None if data is None else self.repo.write_blob(data) for path, data in files.items()}
        return self.repo.write_commit(self.repo.write_tree(parents[0], blobs), parents, "x\n", ALICE)

    def merged(self, head: str) -> dict[str, bytes]:
        """The files that `git merge` makes of the base and a head that do not conflict."""
        command = ["git", "-C", str(self.repo.git_dir), "merge-tree", "--write-tree", self.base, head]
        tree = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        paths = list(self.repo.tree(tree))
        contents = self.repo.blobs([f"{tree}:{path}" for path in paths])
        return {path: data for path, data in zip(paths, contents, strict=True) if data is not None}

    def _entries(self, commit: str) -> dict[str, tuple[str, str]]:
        return {path: (entry.mode, entry.sha) for path, entry in self.repo.tree(commit).items()}

    def _tree(self, entries: Mapping[str, tuple[str, str]]) -> str:
        """A tree of any kinds of entries, through an index of its own."""
        index = str(self.repo.git_dir / "scratch-index")
        lines = "".join(f"{mode} {sha}\t{path}\0" for path, (mode, sha) in entries.items())
        environment = {"GIT_INDEX_FILE": index, "GIT_DIR": str(self.repo.git_dir), "PATH": "/usr/bin:/bin"}

        def git(*arguments: str, stdin: bytes = b"") -> str:
            done = subprocess.run(["git", *arguments], input=stdin, capture_output=True, check=True, env=environment)
            return done.stdout.decode().strip()

        git("read-tree", "--empty")
        git("update-index", "-z", "--index-info", stdin=lines.encode())
        return git("write-tree")


__all__ = ["ALICE", "CHECK", "CODEOWNERS", "FILE_MODE", "Heads", "knowledge"]
