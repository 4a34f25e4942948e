"""What must hold before a pull request becomes part of its base, and the tree that it then makes.

These checks keep a person from merging something by mistake. They are a workflow aid and not security: whoever can
write to the bare repository can move its branches without them.
"""

from __future__ import annotations

from dataclasses import dataclass

from metainfer.forge.codeowners import LOCATIONS, CodeOwners, parse_codeowners
from metainfer.forge.evidence import examine
from metainfer.forge.paths import KNOWLEDGE, engine_folder, mode_complaints, path_complaints, spelling_complaints
from metainfer.forge.plumbing import Repository, TreeEntry
from metainfer.forge.protocol import PullRequest


@dataclass(frozen=True, slots=True)
class Change:
    """What a head changes since it left the base. A value of None in `files` is a removal."""

    start: str
    """The commit where the head left the base."""
    files: dict[str, TreeEntry | None]

    def below(self, folder: str) -> dict[str, TreeEntry | None]:
        """The changed files below a folder, which ends with a slash."""
        return {path: entry for path, entry in self.files.items() if path.startswith(folder)}


def read_change(repo: Repository, base: str, head: str) -> Change | None:
    """The change from where `head` left `base`; None if the two have no history in common."""
    start = repo.merge_base(base, head)
    if start is None:
        return None
    before, after = repo.tree(start), repo.tree(head)
    paths = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    return Change(start, {path: after.get(path) for path in sorted(paths)})


def conflicts(repo: Repository, engine: str, base: str, change: Change) -> list[str]:
    """Where the base moved in a way that the head does not know of; empty when both can be had.

    Whole-file comparison, on purpose: evidence is for exact bytes, so text is never merged within a file. The
    engine's folder counts as one unit, for the same reason.
    """
    folder = engine_folder(engine)
    moved = []
    if repo.object_at(change.start, folder) != repo.object_at(base, folder):
        moved.append(f"{folder} changed on the base since this was generated; generate again")
    knowledge = change.below(KNOWLEDGE)
    if knowledge and repo.object_at(change.start, KNOWLEDGE) != repo.object_at(base, KNOWLEDGE):
        before, now = repo.tree(change.start, KNOWLEDGE), repo.tree(base, KNOWLEDGE)
        moved += [
            f"{path} changed on the base since this was proposed; generate again"
            for path, entry in knowledge.items()
            if before.get(path) != now.get(path) and now.get(path) != entry
        ]
    return moved


def fits(repo: Repository, engine: str, base: str, head: str) -> bool:
    """Whether a head can be merged into commit `base` as it stands."""
    change = read_change(repo, base, head)
    return change is not None and not conflicts(repo, engine, base, change)


def merged_tree(repo: Repository, base: str, change: Change) -> str:
    """The tree of the base with the change applied."""
    return repo.write_tree(base, {path: entry.sha if entry else None for path, entry in change.files.items()})


def blockers(repo: Repository, pull: PullRequest, base: str, tip: str | None) -> list[str]:
    """Everything in the way of merging `pull` into commit `base`; `tip` is where its branch stands now."""
    if pull.state != "open":
        return [f"it is {pull.state}"]
    found = []
    if tip is None:
        found.append(f"its branch {pull.branch} is gone; run the pipeline again, which puts it back")
    elif tip != pull.head:
        found.append(f"its branch {pull.branch} is at {tip[:12]}, not at the proposed head {pull.head[:12]}")
    change = read_change(repo, base, pull.head)
    if change is None:
        return [*found, f"it has no history in common with {pull.base}"]
    if len(repo.merge_bases(base, pull.head)) > 1:
        # Git merges from all of them, and what we looked at is the difference from one.
        found.append(
            f"its history crossed that of {pull.base}, so that what a merge would bring cannot be told; rebase"
        )
    found += _content_blockers(repo, pull, base, change)
    found += conflicts(repo, pull.engine, base, change)
    found += _review_blockers(repo, pull, base, change)
    return found


def _content_blockers(repo: Repository, pull: PullRequest, base: str, change: Change) -> list[str]:
    folder = engine_folder(pull.engine)
    found = path_complaints(change.files, [folder, KNOWLEDGE])
    found += mode_complaints({path: entry for path, entry in change.files.items() if entry})
    added = change.below(KNOWLEDGE)
    found += spelling_complaints(added, [path for path in repo.tree(base, KNOWLEDGE) if path not in added])
    if found:
        return found
    paths = sorted(repo.tree(pull.head, folder))
    contents = repo.blobs([f"{pull.head}:{path}" for path in paths])
    files = {path.removeprefix(folder): data for path, data in zip(paths, contents, strict=True) if data is not None}
    return list(examine(pull.engine, files, pull.input_hash).problems)


def _review_blockers(repo: Repository, pull: PullRequest, base: str, change: Change) -> list[str]:
    approvers = {review.by for review in pull.reviews if review.head == pull.head}
    if not approvers:
        if pull.reviews:
            last = pull.reviews[-1]
            return [
                f"{last.by} approved {last.head[:12]}, and the head is now {pull.head[:12]}: "
                "the reviewed head is not the one to be merged; review it again"
            ]
        return [f"nobody has approved head {pull.head[:12]} yet"]
    knowledge = change.below(KNOWLEDGE)
    if not knowledge:
        return []
    missing = read_codeowners(repo, base).unapproved(knowledge, approvers)
    found = []
    for owners in sorted(set(missing.values())):
        paths = [path for path, theirs in missing.items() if theirs == owners]
        who = " or ".join(owners) or f"an owner, and {LOCATIONS[0]} on {pull.base} names none"
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        found.append(f"{', '.join(paths[:3])}{more}: a change of knowledge needs the approval of {who}")
    return found


def read_codeowners(repo: Repository, commit: str) -> CodeOwners:
    """The code owners that hold at a commit. Always asked of the base: a head cannot appoint its own reviewers."""
    for content in repo.blobs([f"{commit}:{path}" for path in LOCATIONS]):
        if content is not None:
            return parse_codeowners(content.decode("utf-8", "replace"))
    return CodeOwners(())
