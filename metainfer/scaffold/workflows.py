"""Thin workflows for a repository: each calls a reusable workflow of metainfer's own repository, at a pinned commit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from metainfer.errors import InputError, MachineError
from metainfer.forge.pinned import is_commit, resolve
from metainfer.forge.plumbing import run_git

TEMPLATES = Path(__file__).parent / "callers"
FOLDER = ".github/workflows"
_USES = re.compile(
    r"^ *uses: (?P<slug>[\w.-]+/[\w.-]+)/\.github/workflows/[\w.-]+"
    r"@(?P<commit>[0-9a-f]{40}) # (?P<label>\S+)$",
    re.MULTILINE,
)
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
_REMOTE = re.compile(r"(?:https://[^/]+/|(?:ssh://)?git@[^/:]+[/:])([^/]+/[^/]+?)(?:\.git)?/?")


@dataclass(frozen=True, slots=True)
class Source:
    """Where reusable workflows are: `slug` is owner/name, `commit` a full id, `label` what people call it."""

    slug: str
    commit: str
    label: str


def callers(source: Source) -> dict[str, bytes]:
    """The files to write, by path from the repository's root."""
    words = {"@SOURCE@": source.slug, "@COMMIT@": source.commit, "@LABEL@": source.label}
    files = {}
    for template in sorted(TEMPLATES.glob("*.yml")):
        text = template.read_text("utf-8")
        for name, value in words.items():
            text = text.replace(name, value)
        files[f"{FOLDER}/{template.name}"] = text.encode()
    return files


def pinned_in(root: Path) -> Source | None:
    """What the callers in a repository are pinned to; None if it has none, or they do not agree."""
    found = set()
    for template in sorted(TEMPLATES.glob("*.yml")):
        file = root / FOLDER / template.name
        if file.is_file():
            found |= {Source(**match.groupdict()) for match in _USES.finditer(file.read_text("utf-8", "replace"))}
    return found.pop() if len(found) == 1 else None


def find_source(given: str | None, *, server: str = "https://github.com", pinned: Source | None = None) -> Source:
    """`given` as OWNER/REPO@REF, else wherever this installation of metainfer is from, else `pinned`.

    A tag is looked up and pinned by its commit. InputError if it is neither given nor known.
    """
    if given is None:
        return _installed_from() or pinned or _unknown()
    slug, at, ref = given.partition("@")
    if not at or not _SLUG.fullmatch(slug):
        raise InputError(f"--workflows {given!a}: write OWNER/REPO@REF, or none")
    pin = resolve(f"{server}/{slug}.git", ref)
    return Source(slug, pin.commit, ref if not is_commit(ref) else ref[:12])


def _unknown() -> NoReturn:
    raise InputError(
        "where metainfer's reusable workflows are is not known from this installation; "
        "say it with --workflows OWNER/REPO@REF (a tag or a full commit id), or leave them out with --workflows none"
    )


def _installed_from() -> Source | None:
    """From the installer's record (a Git URL and commit), or the checkout that is being worked on."""
    try:
        record: Mapping[str, object] = json.loads(
            metadata.distribution("metainfer").read_text("direct_url.json") or "{}"
        )
    except metadata.PackageNotFoundError:
        return None
    url, vcs = str(record.get("url", "")), record.get("vcs_info")
    if isinstance(vcs, Mapping):
        commit = str(vcs.get("commit_id", ""))
    else:
        folder = Path(__file__).parents[2]
        url = _output(folder, "remote", "get-url", "origin")
        commit = _output(folder, "rev-parse", "HEAD")
    found = _REMOTE.fullmatch(url)
    if not found or not _SLUG.fullmatch(found.group(1)) or not is_commit(commit):
        return None
    return Source(found.group(1), commit, commit[:12])


def _output(folder: Path, *arguments: str) -> str:
    try:
        done = run_git(["-C", str(folder), *arguments])
    except MachineError:
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
