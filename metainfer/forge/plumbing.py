"""Git's plumbing on a bare repository: objects in, objects out, and refs moved only by compare-and-swap.

Plain subprocesses, because what counts here is control: the environment (a hook's `GIT_DIR` must not leak in),
bytes in both directions, and ref transactions.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metainfer.errors import MachineError, MetainferError
from metainfer.forge.protocol import Identity

NOTHING = "0" * 40
FILE_MODE = "100644"
LINK_MODE = "160000"
# Set by Git for its hooks; with any of these inherited, a command would act on another repository or index.
_LOCAL_VARIABLES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_CONFIG_COUNT",
        "GIT_CONFIG_PARAMETERS",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_QUARANTINE_PATH",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)


class GitError(MetainferError):
    """A Git command failed for a reason that is neither a lost race nor a missing object."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One file of a tree: `mode` as Git writes it (100644 is a plain file), `sha` of the blob."""

    mode: str
    kind: str
    sha: str


@dataclass(frozen=True, slots=True)
class RefUpdate:
    """Move `ref` from `old` to `new`. `old` None: must not exist yet. `new` None: delete."""

    ref: str
    new: str | None
    old: str | None


def git_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without what binds Git to another repository, with messages in English."""
    kept = {name: value for name, value in os.environ.items() if name not in _LOCAL_VARIABLES}
    kept |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_OPTIONAL_LOCKS": "0"}
    return kept | dict(extra or {})


def run_git(
    arguments: Sequence[str], *, stdin: bytes = b"", extra: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run `git` and return whatever it said; MachineError if there is no Git."""
    try:
        return subprocess.run(
            ["git", *arguments], input=stdin, capture_output=True, env=git_environment(extra), check=False
        )
    except FileNotFoundError as error:
        raise MachineError("git was not found on PATH; install Git 2.30 or newer") from error


class Repository:
    """A bare repository seen through plumbing commands. Holds no state: every call asks Git."""

    def __init__(self, git_dir: Path) -> None:
        self.git_dir = git_dir

    # Reading

    def read(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """The output of a command that changes nothing. GitError if it fails."""
        done = self._run(arguments, stdin, None)
        if done.returncode:
            raise self._error(arguments, done)
        return done.stdout

    def ask(self, *arguments: str, stdin: bytes = b"") -> bool:
        """A command whose exit code is its answer (0 yes, 1 no); GitError on any other."""
        done = self._run(arguments, stdin, None)
        if done.returncode not in (0, 1):
            raise self._error(arguments, done)
        return done.returncode == 0

    def commit_at(self, revision: str) -> str | None:
        """The full id of the commit that `revision` names; None if it names none."""
        done = self._run(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"], b"", None)
        return done.stdout.decode().strip() or None if done.returncode == 0 else None

    def refs(self, prefix: str) -> dict[str, str]:
        """Refs at or below `prefix` (given without a trailing slash) → the object each one holds.

        GitError naming a ref whose file holds no object name: Git passes such a ref over, as if it were not there.
        """
        arguments = ("for-each-ref", "--format=%(objectname) %(refname)", prefix)
        done = self._run(arguments, b"", None)
        if done.returncode:
            raise self._error(arguments, done)
        if broken := re.search(rb"ignoring broken ref (\S+)", done.stderr):
            ref = broken.group(1).decode(errors="replace")
            raise GitError(f"{ref} in {self.git_dir} is broken. {self.how_to_put_back(ref)}")
        lines = done.stdout.decode().splitlines()
        return {name: sha for sha, _, name in (line.partition(" ") for line in lines)}

    def how_to_put_back(self, ref: str) -> str:
        """What a person does about a ref that was damaged or removed by hand."""
        git = f"git --git-dir={self.git_dir}"
        return (
            f"To put it back: remove the file {self.git_dir / ref} if there is one, find the newest commit that it "
            f"held with `{git} fsck --unreachable` (the subject of a pull request's record starts with its #number), "
            f"then `{git} update-ref {ref} COMMIT`"
        )

    def kind_of(self, sha: str) -> str:
        """`commit`, `tree`, `blob` or `tag`; `missing object` if there is none of that id."""
        done = self._run(["cat-file", "-t", sha], b"", None)
        return done.stdout.decode().strip() if done.returncode == 0 else "missing object"

    def blobs(self, specs: Sequence[str]) -> list[bytes | None]:
        """Contents of blobs named by id or `commit:path`, in the order asked; None where there is no such blob."""
        if any("\n" in spec for spec in specs):
            raise GitError("an object name cannot hold a line break")
        if not specs:
            return []
        out = self.read("cat-file", "--batch", stdin="".join(f"{spec}\n" for spec in specs).encode())
        found: list[bytes | None] = []
        at = 0
        for _ in specs:
            end = out.index(b"\n", at)
            header = out[at:end].split(b" ")
            at = end + 1
            # "<name> missing" or "<id> <type> <size>", the latter followed by the content and a line feed.
            if header[-1] in (b"missing", b"ambiguous"):
                found.append(None)
                continue
            size = int(header[-1])
            found.append(out[at : at + size] if header[-2] == b"blob" else None)
            at += size + 1
        return found

    def tree(self, revision: str, folder: str = "") -> dict[str, TreeEntry]:
        """Every file below `folder`, by path from the root; empty when the folder is not there."""
        where = ["--", folder] if folder else []
        out = self.read("ls-tree", "-r", "-z", "--full-tree", revision, *where).decode("utf-8", "surrogateescape")
        entries = {}
        for line in filter(None, out.split("\0")):
            meta, _, path = line.partition("\t")
            entries[path] = TreeEntry(*meta.split(" "))
        return entries

    def link_at(self, revision: str, path: str) -> str | None:
        """The commit that a submodule at `path` is pinned to; None if there is no submodule there."""
        entry = self.tree(revision, path).get(path)
        return entry.sha if entry and entry.mode == LINK_MODE else None

    def object_at(self, revision: str, path: str) -> str | None:
        """The id of the file or folder at `path` ("" is the root); None if absent. Equal ids mean equal content."""
        spec = f"{revision}:{path.rstrip('/')}"
        done = self._run(["rev-parse", "--verify", "--quiet", "--end-of-options", spec], b"", None)
        return done.stdout.decode().strip() or None if done.returncode == 0 else None

    def merge_base(self, one: str, other: str) -> str | None:
        """The best common ancestor; None if there is none."""
        done = self._run(["merge-base", one, other], b"", None)
        return done.stdout.decode().split()[0] if done.returncode == 0 else None

    def merge_bases(self, one: str, other: str) -> list[str]:
        """All best common ancestors: where histories crossed there are several, and a merge looks at each."""
        done = self._run(["merge-base", "--all", one, other], b"", None)
        return done.stdout.decode().split() if done.returncode == 0 else []

    def merge_result(self, base: str, head: str) -> str | None:
        """The tree that `git merge` makes, renames followed, conflicts marked in the files. None before Git 2.38."""
        done = self._run(["merge-tree", "--write-tree", "--no-messages", base, head], b"", None)
        return done.stdout.decode().split("\n", 1)[0] if done.returncode in (0, 1) else None

    def touched(self, base: str, head: str) -> set[str]:
        """Paths that any commit of `head` that `base` lacks changes, merges aside; also what a later one undoes."""
        options = ("--no-merges", "--no-renames", "--name-only", "--format=", "-z")
        out = self.read("log", *options, f"{base}..{head}", "--").decode("utf-8", "surrogateescape")
        return set(out.split("\0")) - {""}

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether `older` is reachable from `newer`."""
        return self.ask("merge-base", "--is-ancestor", older, newer)

    # Writing

    def write_blob(self, data: bytes) -> str:
        """Store a file's content and return its id."""
        return self._write(["hash-object", "-w", "--stdin", "--no-filters"], data).decode().strip()

    def write_tree(self, base: str | None, files: Mapping[str, str | None]) -> str:
        """A tree like that of commit `base` (None: empty) with `files` set to blob ids, or removed where None."""
        with tempfile.TemporaryDirectory(prefix="metainfer-index-") as folder:
            index = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
            self._write(["read-tree", *([base] if base else ["--empty"])], b"", index)
            lines = [
                f"0 {NOTHING}\t{path}\0" if blob is None else f"{FILE_MODE} {blob}\t{path}\0"
                # Removals first: a file may give way to a folder of the same name.
                for path, blob in sorted(files.items(), key=lambda item: (item[1] is not None, item[0]))
            ]
            self._write(["update-index", "-z", "--index-info"], "".join(lines).encode(), index)
            return self._write(["write-tree"], b"", index).decode().strip()

    def write_commit(
        self, tree: str, parents: Iterable[str], message: str, author: Identity, committer: Identity | None = None
    ) -> str:
        """A commit object on no branch yet."""
        committer = committer or author
        who = {
            "GIT_AUTHOR_NAME": author.name,
            "GIT_AUTHOR_EMAIL": author.email,
            "GIT_COMMITTER_NAME": committer.name,
            "GIT_COMMITTER_EMAIL": committer.email,
        }
        arguments = ["commit-tree", tree, *(part for parent in parents for part in ("-p", parent))]
        return self._write(arguments, message.encode(), who).decode().strip()

    def write_tag(self, name: str, commit: str, message: str, tagger: Identity, when: int) -> str:
        """An annotated tag object that no ref points at yet. `when` in seconds since the epoch, UTC."""
        head = f"object {commit}\ntype commit\ntag {name}\ntagger {tagger.name} <{tagger.email}> {when} +0000\n\n"
        return self._write(["mktag"], (head + message).encode()).decode().strip()

    def move_refs(self, updates: Sequence[RefUpdate], reason: str) -> bool:
        """Move all refs or none. False when one of them is not (any more) where its `old` says: re-read and decide."""
        lines = ["start\n"]
        for update in updates:
            if update.new is None:
                lines.append(f"delete {update.ref} {update.old}\n")
            elif update.old is None:
                lines.append(f"create {update.ref} {update.new}\n")
            else:
                lines.append(f"update {update.ref} {update.new} {update.old}\n")
        lines += ["prepare\n", "commit\n"]
        arguments = ["update-ref", "-m", reason, "--stdin"]
        done = self._mutate(arguments, "".join(lines).encode(), None)
        if done.returncode == 0:
            return True
        if b"; cannot create" in done.stderr or _cannot_write(done.stderr):
            # A branch named like a folder of ours (or the reverse), or no place to write: looking again will not help.
            raise self._error(arguments, done)
        # Git says "cannot lock ref" for a wrong old value, an existing ref, and a lock held by another process.
        if b"cannot lock ref" in done.stderr or b"Unable to create" in done.stderr or b".lock" in done.stderr:
            return False
        raise self._error(arguments, done)

    # The two doors to the process: every change to the repository goes through `_mutate`.

    def _write(self, arguments: Sequence[str], stdin: bytes, extra: Mapping[str, str] | None = None) -> bytes:
        done = self._mutate(arguments, stdin, extra)
        if done.returncode:
            raise self._error(arguments, done)
        return done.stdout

    def _mutate(
        self, arguments: Sequence[str], stdin: bytes, extra: Mapping[str, str] | None
    ) -> subprocess.CompletedProcess[bytes]:
        return self._run(arguments, stdin, extra)

    def _run(
        self, arguments: Sequence[str], stdin: bytes, extra: Mapping[str, str] | None
    ) -> subprocess.CompletedProcess[bytes]:
        return run_git([f"--git-dir={self.git_dir}", *arguments], stdin=stdin, extra=extra)

    def _error(self, arguments: Sequence[str], done: subprocess.CompletedProcess[bytes]) -> MetainferError:
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        if _cannot_write(done.stderr):
            return MachineError(
                f"{self.git_dir}: Git may not read or write there ({said}); see to its permissions and disk"
            )
        return GitError(f"git {arguments[0]} failed in {self.git_dir}: {said}")


def _cannot_write(said: bytes) -> bool:
    """Whether Git says that the machine, and not the repository, stands in the way of a change."""
    return any(
        words in said
        for words in (
            b"Permission denied",
            b"insufficient permission",
            b"Read-only file system",
            b"No space left on device",
            b"quota exceeded",
        )
    )
