"""What a pull request changes in the knowledge base, read from Git: paths, findings, and what no review can accept."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from metainfer.ckb.weakening import Change, compare
from metainfer.forge.paths import spelling_complaints
from metainfer.forge.plumbing import LINK_MODE, Repository, TreeEntry

ROOT = "ckb"
_PLAIN = ("100644", "100755")


@dataclass(frozen=True, slots=True)
class KnowledgeChange:
    """The part of a head that is about knowledge."""

    start: str
    """The commit where the head left its base; "" if the two have nothing in common."""
    paths: tuple[str, ...]
    """Every changed path, from the repository's root: changed, new and removed ones."""
    findings: tuple[Change, ...]
    """What changes, in words and kinds; paths are relative to ckb/."""
    problems: tuple[str, ...]
    """What knowledge must not be, whoever approves it: links, files in disguise, a pin beside other changes."""


def is_knowledge(path: str) -> bool:
    """Whether a path lies at or below ckb/, also as a file system sees it that folds case or compatible letters."""
    first = path.split("/", 1)[0]
    return unicodedata.normalize("NFKC", first).casefold().rstrip(". ") == ROOT


def read_knowledge_change(repo: Repository, base: str, head: str) -> KnowledgeChange:
    """Compare `head` with the commit where it left `base`. Both must be in `repo`."""
    start = repo.merge_base(base, head)
    if start is None:
        return KnowledgeChange("", (), (), ("it has no history in common with its base",))
    before, after = repo.tree(start), repo.tree(head)
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    pinned = ROOT in before and before[ROOT].mode == LINK_MODE, ROOT in after and after[ROOT].mode == LINK_MODE
    paths = [path for path in changed if is_knowledge(path)]
    if any(pinned):  # which repository the pin is of stands there
        paths += [path for path in changed if path == ".gitmodules"]
    if not paths:
        return KnowledgeChange(start, (), (), ())
    problems = _problems(paths, before, after)
    return KnowledgeChange(start, tuple(paths), tuple(_findings(repo, start, head, before, after)), tuple(problems))


def _problems(paths: list[str], before: Mapping[str, TreeEntry], after: Mapping[str, TreeEntry]) -> list[str]:
    kinds = {"120000": "a symbolic link", LINK_MODE: "a submodule"}
    found = []
    for path in paths:
        shown = ascii(path)[1:-1]
        if path in after and after[path].mode not in _PLAIN and path != ROOT:
            found.append(f"{shown}: {kinds.get(after[path].mode, 'no plain file')}; knowledge is kept as plain files")
        elif path in after and path != ".gitmodules" and path.split("/", 1)[0] != ROOT:
            found.append(f"{shown}: reads as {ROOT}/ on some file systems, and is another folder")
        elif path == ROOT and path in after and after[path].mode != LINK_MODE:
            found.append(f"{ROOT}: is a file or link; knowledge is kept in a folder, or as a submodule")
    new = [path for path in paths if path in after and path not in before]
    return found + spelling_complaints(new, [path for path in after if path not in new])


def _findings(
    repo: Repository, start: str, head: str, before: Mapping[str, TreeEntry], after: Mapping[str, TreeEntry]
) -> list[Change]:
    found = []
    if before.get(ROOT) != after.get(ROOT):
        found.append(_pin_change(before.get(ROOT), after.get(ROOT)))
    return found + compare(_files(repo, start, before), _files(repo, head, after))


def _pin_change(old: TreeEntry | None, new: TreeEntry | None) -> Change:
    # Both sides of a moved pin are commits of another repository, which this one does not hold.
    was, now = (entry.sha[:12] if entry and entry.mode == LINK_MODE else "no pin" for entry in (old, new))
    words = f"the pin of the shared base moves from {was} to {now}: read that change in its own repository"
    return Change("", words, weakens=True)


def _files(repo: Repository, commit: str, tree: Mapping[str, TreeEntry]) -> dict[str, bytes]:
    paths = [path for path, entry in tree.items() if path.startswith(f"{ROOT}/") and entry.mode in _PLAIN]
    # Asked for by the ids of blobs: a path may hold a line break.
    contents = repo.blobs([tree[path].sha for path in paths])
    return {path.removeprefix(f"{ROOT}/"): data for path, data in zip(paths, contents, strict=True) if data is not None}
