"""A pull request on GitHub as the record that all forges share, and the reviews that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from metainfer.forge.github.connect import Connection
from metainfer.forge.github.conversation import Conversation
from metainfer.forge.markers import BRANCH_PREFIX, branch_of, read_marker
from metainfer.forge.protocol import BOT, NoSuchPullError, PullRequest, Review, State

if TYPE_CHECKING:
    from github.PullRequest import PullRequest as Pull

RETIRED = "retired"
"""In the marker of a pull request that the bot closed, since its base holds what it would bring."""
HEAD = "head"
"""In the marker: the head that the body speaks of. Another head means that an earlier run stopped between the two."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the reviews of a pull request come to."""

    approvals: tuple[Review, ...]
    objectors: tuple[str, ...]
    """Who asked for changes and has not taken it back."""


class Pulls:
    """Reads pull requests. What a list says of one is taken as it is; nothing is asked twice."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def of_engine(self, engine: str, base: str) -> list[Pull]:
        """Pull requests from the engine's branch of this very repository to `base`, in any state, oldest first."""
        branch = branch_of(engine)
        head = f"{self.connection.address.owner}:{branch}"
        found = self.connection.read(
            f"looking for pull requests of {branch}",
            lambda: list(self.connection.repo.get_pulls("all", "created", "asc", base=base, head=head)),
        )
        return sorted((pull for pull in found if self._is_at(pull, branch, base)), key=lambda pull: pull.number)

    def elsewhere(self, engine: str, base: str) -> Pull | None:
        """An open pull request from the engine's branch to another base than `base`."""
        branch = branch_of(engine)
        found = self.connection.read(
            f"looking for pull requests of {branch}",
            lambda: list(self.connection.repo.get_pulls("open", head=f"{self.connection.address.owner}:{branch}")),
        )
        ours = (pull for pull in found if self._is_ours(pull) and pull.head.ref == branch and pull.base.ref != base)
        return min(ours, key=lambda pull: pull.number, default=None)

    def of_bot(self, state: str) -> list[Pull]:
        """All from branches of the bot in this repository. `state` is open, closed or all."""
        found = self.connection.read(
            "listing pull requests", lambda: list(self.connection.repo.get_pulls(state, "created", "asc"))
        )
        return sorted(
            (pull for pull in found if self._is_ours(pull) and pull.head.ref.startswith(BRANCH_PREFIX)),
            key=lambda pull: pull.number,
        )

    def one(self, number: int) -> Pull | None:
        """One by its number; None if there is none."""
        # PyGithub asks when a field is first needed: later than here, nothing would turn its exceptions into words.
        repo = self.connection.repo
        return self.connection.find(f"reading pull request #{number}", lambda: repo.get_pull(number).complete())

    def must(self, number: int) -> Pull:
        """The same; NoSuchPullError if there is none."""
        pull = self.one(number)
        if pull is None:
            raise NoSuchPullError(f"there is no pull request #{number} in {self.connection.address.slug}")
        return pull

    def edit(self, number: int, what: str, done: Callable[[Pull], bool], **fields: str) -> None:
        """Change a pull request. `done` tells from what is there whether the change was made."""
        path = f"/repos/{self.connection.address.slug}/pulls/{number}"

        def made() -> bool | None:
            pull = self.one(number)
            return True if pull is not None and done(pull) else None

        self.connection.write(what, lambda: bool(self.connection.request("PATCH", path, fields)), made)

    def standing(self, pull: Pull) -> Standing:
        """Each person's last word, comments aside: those take nothing back. Approvals are signed `@login`."""
        last: dict[str, Review | None] = {}
        for said in self.connection.read(f"reading the reviews of #{pull.number}", lambda: list(pull.get_reviews())):
            if said.user is None or said.state == "COMMENTED" or said.state == "PENDING":
                continue
            login = f"@{said.user.login}"
            if said.state == "CHANGES_REQUESTED":
                last[login] = None
            elif said.state == "APPROVED" and said.commit_id:
                last[login] = Review(by=login, name=said.user.login, head=said.commit_id, at=stamp(said.submitted_at))
            else:
                last.pop(login, None)
        approvals = tuple(review for review in last.values() if review is not None)
        return Standing(approvals, tuple(sorted(login for login, review in last.items() if review is None)))

    def closer(self, pull: Pull) -> str | None:
        """Who closed it without merging: the bot by its own mark, else the account that GitHub names, or "somebody"."""
        if state_of(pull) != "closed":
            return None
        if read_marker(pull.body or "").get(RETIRED):
            return BOT.label
        # The issue says it too, but not to rights that are for pull requests.
        closed = Conversation(self.connection).events(pull.number, "closed")
        closers = [str((event.get("actor") or {}).get("login") or "") for event in closed]
        return next((f"@{login}" for login in reversed(closers) if login), "somebody")

    def as_record(self, pull: Pull, head: str | None = None, reviews: Sequence[Review] = ()) -> PullRequest:
        """The shared form. `head` is where Git says the branch is, if it was asked."""
        marker = read_marker(pull.body or "")
        head = head or pull.head.sha
        # A body that speaks of another head says nothing about this one.
        described = marker.get(HEAD, head) == head
        return PullRequest(
            number=pull.number,
            engine=marker.get("engine", ""),
            branch=pull.head.ref,
            base=pull.base.ref,
            base_sha=pull.base.sha,
            title=pull.title,
            state=state_of(pull),
            head=head,
            input_hash=marker.get("input_hash", "") if described else "",
            has_knowledge=False,
            created=stamp(pull.created_at),
            updated=stamp(pull.updated_at),
            closed_by=None,
            merge_commit=pull.merge_commit_sha if state_of(pull) == "merged" else None,
            body=pull.body or "",
            labels=tuple(label.name for label in pull.labels),
            reviews=tuple(reviews),
        )

    def _is_at(self, pull: Pull, branch: str, base: str) -> bool:
        return self._is_ours(pull) and pull.head.ref == branch and pull.base.ref == base

    def _is_ours(self, pull: Pull) -> bool:
        """Whether its branch is in this repository and not in a fork, which may be gone by now."""
        repo = pull.head.repo
        return repo is not None and repo.full_name.casefold() == self.connection.address.slug.casefold()


def state_of(pull: Pull) -> State:
    """Open, closed or merged."""
    if pull.merged_at is not None:
        return "merged"
    return "open" if pull.state == "open" else "closed"


def stamp(when: datetime | None) -> str:
    """A time as records hold it: ISO 8601 in UTC, to the second."""
    if when is None:
        return ""
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
