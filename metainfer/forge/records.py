"""Pull requests as Git objects: `refs/metainfer/pulls/<n>` is a chain of commits, one for each thing that happened.

The tree of the newest commit is the pull request as it stands; older commits are its history, and nothing is ever
taken out of it. Each commit also has the head it speaks of as a parent, so that no reviewed head is ever pruned.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from metainfer.files import pretty_json
from metainfer.forge.plumbing import GitError, RefUpdate, Repository
from metainfer.forge.protocol import Identity, PullRequest

PULLS = "refs/metainfer/pulls"
_FILES = ("pull.json", "body.md", "comments.json", "reviews.json")
_READS = 5


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A pull request and the commit of its chain that was read: what a later write compares with."""

    pull: PullRequest
    sha: str


class PullStore:
    """Reads pull requests and prepares changes to them; the caller moves the refs, together with its own."""

    def __init__(self, repo: Repository) -> None:
        self.repo = repo

    def all(self) -> list[Recorded]:
        """Every pull request, by number. A listing made while others write may skip one; such a listing is redone."""
        for _ in range(_READS):
            refs = {int(name.rsplit("/", 1)[1]): sha for name, sha in self.repo.refs(PULLS).items()}
            if sorted(refs) == list(range(1, len(refs) + 1)):
                return self._load([refs[number] for number in sorted(refs)])
        raise GitError(f"{PULLS} in {self.repo.git_dir} has gaps: a pull request's ref was removed by hand")

    def get(self, number: int) -> Recorded | None:
        """One pull request; None if the number is not taken."""
        sha = self.repo.commit_at(f"{PULLS}/{number}") if number > 0 else None
        return self._load([sha])[0] if sha else None

    def change(
        self, pull: PullRequest, previous: str | None, what: str, by: Identity, keep: Sequence[str] = ()
    ) -> RefUpdate:
        """Write the objects of a new state and return the ref move that makes it so.

        `previous` is the chain's commit that the change was made from; None claims the number, which fails if it is
        taken. `keep` are commits, beside the head, that must stay reachable.
        """
        record = pull.model_dump(mode="json")
        parts = {
            "body.md": record.pop("body").encode(),
            "comments.json": pretty_json(record.pop("comments")),
            "reviews.json": pretty_json(record.pop("reviews")),
            "pull.json": pretty_json(record),
        }
        tree = self.repo.write_tree(None, {name: self.repo.write_blob(data) for name, data in parts.items()})
        parents = dict.fromkeys([*([previous] if previous else []), pull.head, *keep])
        commit = self.repo.write_commit(tree, parents, f"#{pull.number}: {what}\n", by)
        return RefUpdate(f"{PULLS}/{pull.number}", commit, previous)

    def _load(self, shas: Sequence[str]) -> list[Recorded]:
        blobs = self.repo.blobs([f"{sha}:{name}" for sha in shas for name in _FILES])
        return [
            Recorded(_decode(sha, blobs[at * len(_FILES) : (at + 1) * len(_FILES)]), sha) for at, sha in enumerate(shas)
        ]


def _decode(sha: str, blobs: Sequence[bytes | None]) -> PullRequest:
    try:
        pull, body, comments, reviews = (blob or b"" for blob in blobs)
        record: dict[str, Any] = json.loads(pull)
        return PullRequest.model_validate(
            {**record, "body": body.decode(), "comments": json.loads(comments), "reviews": json.loads(reviews)}
        )
    except ValueError as error:
        raise GitError(f"commit {sha} is not a pull request's record: {error}") from error
