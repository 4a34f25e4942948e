"""Pull requests as Git objects: `refs/metainfer/pulls/<n>` is a chain of commits, one for each thing that happened.

The tree of the newest commit is the pull request as it stands; older commits are its history, and nothing is ever
taken out of it. Each commit also has the head it speaks of as a parent, so that no reviewed head is ever pruned.
"""

from __future__ import annotations

import json
import re
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
            refs = self.repo.refs(PULLS)
            by_number = {self._number(ref): ref for ref in refs}
            gaps = set(range(1, max(by_number, default=0) + 1)) - by_number.keys()
            if not gaps:
                return self._load([(by_number[number], refs[by_number[number]]) for number in sorted(by_number)])
        missing = f"{PULLS}/{min(gaps)}"
        raise GitError(f"{missing} in {self.repo.git_dir} was removed by hand. {self.repo.how_to_put_back(missing)}")

    def get(self, number: int) -> Recorded | None:
        """One pull request; None if the number is not taken."""
        ref = f"{PULLS}/{number}"
        sha = self.repo.refs(ref).get(ref)
        return self._load([(ref, sha)])[0] if sha else None

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

    def _number(self, ref: str) -> int:
        name = ref.removeprefix(f"{PULLS}/")
        if not re.fullmatch(r"[1-9][0-9]*", name):
            git = f"git --git-dir={self.repo.git_dir}"
            raise GitError(
                f"{ref} in {self.repo.git_dir} is in the place of pull requests, and {name!a} is not a pull request's "
                f"number; move it elsewhere, or remove it with `{git} update-ref -d {ref}`"
            )
        return int(name)

    def _load(self, refs: Sequence[tuple[str, str]]) -> list[Recorded]:
        """The records that `refs`, pairs of name and commit, hold."""
        blobs = self.repo.blobs([f"{sha}:{name}" for _, sha in refs for name in _FILES])
        width = len(_FILES)
        return [self._recorded(ref, sha, blobs[at * width : (at + 1) * width]) for at, (ref, sha) in enumerate(refs)]

    def _recorded(self, ref: str, sha: str, blobs: Sequence[bytes | None]) -> Recorded:
        try:
            return Recorded(_decode(blobs), sha)
        except ValueError as error:
            kind = self.repo.kind_of(sha)
            problem = str(error).splitlines()[0] if kind == "commit" else "it should be a commit"
            raise GitError(
                f"{ref} in {self.repo.git_dir} holds {sha[:12]}, a {kind} that is not a pull request's record "
                f"({problem}). {self.repo.how_to_put_back(ref)}"
            ) from error


def _decode(blobs: Sequence[bytes | None]) -> PullRequest:
    """The pull request that the files of a record describe. ValueError if they do not."""
    if missing := [name for name, blob in zip(_FILES, blobs, strict=True) if blob is None]:
        raise ValueError(f"it has no {missing[0]}")
    pull, body, comments, reviews = (blob or b"" for blob in blobs)
    record: dict[str, Any] = json.loads(pull)
    return PullRequest.model_validate(
        {**record, "body": body.decode(), "comments": json.loads(comments), "reviews": json.loads(reviews)}
    )
