"""A knowledge base that is shared: a Git submodule at `ckb/`, pinned to one commit of another repository."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metainfer.errors import InputError, MachineError
from metainfer.forge.plumbing import Repository, run_git

_URL = re.compile(r"(?:https|http|ssh|git|file)://[^\s]+|[\w.-]+@[\w.-]+:[^\s]+|/[^\n\0]+")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class Pin:
    """Where the knowledge base is, and at which commit. `ref` is the name that a person gave: a tag or the commit."""

    url: str
    ref: str
    commit: str


def check_url(url: str) -> str:
    """A URL that Git may be given. InputError for one with credentials, an option, or a helper program in it."""
    if not _URL.fullmatch(url) or not url.isprintable():
        raise InputError(f"{url!a} is no repository that can be pinned; write https://HOST/OWNER/NAME.git, or a path")
    if re.match(r"https?://[^/@]+@", url):
        raise InputError("the URL holds credentials, which would be committed; leave them out")
    return url


def is_commit(text: str) -> bool:
    """Whether `text` is a full commit id."""
    return bool(_COMMIT.fullmatch(text))


def resolve(url: str, ref: str) -> Pin:
    """What a tag or full commit id stands for. InputError for anything that may move, or is not there."""
    check_url(url)
    if is_commit(ref):
        return Pin(url, ref, ref)
    if not re.fullmatch(r"[A-Za-z0-9][\w.+/-]{0,100}", ref):
        raise InputError(f"--ref {ref!a}: give a tag or a full commit id")
    done = run_git(["ls-remote", "--", url, f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}", f"refs/heads/{ref}"])
    if done.returncode:
        raise MachineError(f"{url}: cannot be reached: {_said(done)}")
    found = {name: sha for sha, _, name in (line.partition("\t") for line in done.stdout.decode().splitlines())}
    # An annotated tag is listed twice; the second line names the commit.
    commit = found.get(f"refs/tags/{ref}^{{}}") or found.get(f"refs/tags/{ref}")
    if commit:
        return Pin(url, ref, commit)
    if f"refs/heads/{ref}" in found:
        raise InputError(f"--ref {ref}: is a branch of {url}, which moves; give a tag or a full commit id")
    raise InputError(f"--ref {ref}: {url} has no such tag; give a tag or a full commit id")


def read_pinned(pin: Pin) -> dict[str, bytes]:
    """Every file at the pinned commit, by path. InputError for links and other things that knowledge is not."""
    with tempfile.TemporaryDirectory(prefix="metainfer-pinned-") as scratch:
        repo = Repository(Path(scratch))
        _must(["init", "--quiet", "--bare", "--template=", scratch], pin.url)
        _fetch(Path(scratch), pin)
        entries = {path: entry for path, entry in repo.tree(pin.commit).items() if not path.startswith(".")}
        if odd := [path for path, entry in entries.items() if entry.mode not in ("100644", "100755")]:
            raise InputError(f"{pin.url}: {odd[0]!a} is a link or submodule; knowledge is kept as plain files")
        contents = repo.blobs([entry.sha for entry in entries.values()])
        return {path: data for path, data in zip(entries, contents, strict=True) if data is not None}


def _fetch(git_dir: Path, pin: Pin) -> None:
    """Get one commit; where a server gives out none by its id, whatever it has."""
    check_url(pin.url)
    wanted = pin.commit if is_commit(pin.ref) else f"refs/tags/{pin.ref}"
    fetch = [f"--git-dir={git_dir}", "fetch", "--quiet", "--no-write-fetch-head"]
    if run_git([*fetch, "--depth=1", "--", pin.url, wanted]).returncode:
        _must([*fetch, "--", pin.url, "+refs/heads/*:refs/all/*", "+refs/tags/*:refs/tags/*"], pin.url)
    if Repository(git_dir).commit_at(pin.commit) is None:
        raise InputError(f"{pin.url} has no commit {pin.commit[:12]}")


def submodule_url(gitmodules: bytes, path: str) -> str | None:
    """The URL of the submodule at `path`, by the text of `.gitmodules`; None if it has none there."""
    with tempfile.NamedTemporaryFile(prefix="metainfer-gitmodules-") as file:
        file.write(gitmodules)
        file.flush()
        done = run_git(["config", "--null", "--file", file.name, "--get-regexp", r"^submodule\..*\.(path|url)$"])
    pairs = [item.partition("\n") for item in done.stdout.decode("utf-8", "replace").split("\0") if item]
    values = {key.rpartition(".")[0::2]: value for key, _, value in pairs}
    names = [name for (name, field), value in values.items() if field == "path" and value == path]
    return values.get((names[-1], "url")) if names else None


def _must(arguments: Sequence[str], url: str) -> bytes:
    done = run_git(arguments)
    if done.returncode:
        raise MachineError(f"{url}: git could not read it: {_said(done)}")
    return done.stdout


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return " ".join(" ".join(lines[-2:]).split()) or f"exit code {done.returncode}"
