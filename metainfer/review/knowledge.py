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
    """What merging `head` into `base` would bring to knowledge, by any of the ways in which it may be merged.

    The head is compared with each commit where it left the base. Two things do not show there: what a merge carries
    over, as it follows files that the base moved, and what one commit of the head does and a later one undoes, which a
    merge by rebase applies one after the other. Both commits must be in `repo`.
    """
    starts = repo.merge_bases(base, head)
    if not starts:
        return KnowledgeChange("", (), (), ("it has no history in common with its base",))
    after = repo.tree(head)
    befores = {start: repo.tree(start) for start in starts}
    seen = {path for before in befores.values() for path in _changed(before, after)}
    # Which repository a pin is of stands in .gitmodules.
    pinned = any(ROOT in tree and tree[ROOT].mode == LINK_MODE for tree in (*befores.values(), after))

    def counts(path: str) -> bool:
        return is_knowledge(path) or (pinned and path == ".gitmodules")

    paths, findings = set(filter(counts, seen)), list[Change]()
    if paths:
        findings += [one for start, before in befores.items() for one in _findings(repo, start, head, before, after)]
    carried = set(filter(counts, _carried(repo, base, head))) - paths
    words = "a merge carries a change to it, from where the base had it before"
    findings += [_noted(path, words) for path in sorted(carried)]
    undone = set(filter(counts, repo.touched(base, head))) - paths - carried
    words = "a commit changes it and a later one changes it back; a merge by rebase applies both"
    findings += [_noted(path, words) for path in sorted(undone)]
    found = sorted(paths | carried | undone, key=lambda path: (not is_knowledge(path), path))
    if not found:
        return KnowledgeChange(starts[0], (), (), ())
    problems = _problems(found, befores[starts[0]], after)
    return KnowledgeChange(starts[0], tuple(found), tuple(dict.fromkeys(findings)), tuple(problems))


def _changed(before: Mapping[str, TreeEntry], after: Mapping[str, TreeEntry]) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def _carried(repo: Repository, base: str, head: str) -> set[str]:
    """Paths that differ between the base and what a merge makes of it."""
    merged = repo.merge_result(base, head)
    return _changed(repo.tree(base), repo.tree(merged)) if merged else set()


def _noted(path: str, words: str) -> Change:
    return Change(path.removeprefix(f"{ROOT}/"), words)


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
