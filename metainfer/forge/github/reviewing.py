"""What people do with a pull request: talk, approve, refuse, merge. Acted out in the name of the token's owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from metainfer.errors import ConflictError, InputError
from metainfer.forge import merging
from metainfer.forge.github.connect import Connection
from metainfer.forge.github.conversation import Conversation, Remark, same_text
from metainfer.forge.github.errors import GitHubRefusedError
from metainfer.forge.github.mirror import Mirror
from metainfer.forge.github.owners import Owners
from metainfer.forge.github.pulls import Pulls, state_of
from metainfer.forge.identity import require_text
from metainfer.forge.paths import KNOWLEDGE
from metainfer.forge.protocol import MergeOutcome, MergeRefusedError, PullRequest

if TYPE_CHECKING:
    from github.PullRequest import PullRequest as Pull


class Reviewing:
    """Acts on single pull requests. Every act is looked for before it is repeated."""

    def __init__(self, connection: Connection, mirror: Mirror) -> None:
        self.connection = connection
        self.mirror = mirror
        self.pulls = Pulls(connection)
        self.conversation = Conversation(connection)

    def comment(self, number: int, text: str) -> None:
        """Say something once: what is our own last word already is left at that. InputError if it is nothing.

        An earlier try may have come that far, and its answer may have been lost.
        """
        if not require_text(text, "the comment").strip():
            raise InputError("the comment is empty; write what you want to say")
        self.pulls.must(number)
        before = self.conversation.remarks(number)
        if before and self._is_mine(before[-1], text):
            return

        def said() -> bool | None:
            ids = {remark.id for remark in before}
            return any(r.id not in ids and self._is_mine(r, text) for r in self.conversation.remarks(number)) or None

        path = self._path("issues", number, "/comments")
        self.connection.write(
            f"commenting on #{number}", lambda: bool(self.connection.request("POST", path, {"body": text})), said
        )

    def _is_mine(self, remark: Remark, text: str) -> bool:
        return remark.login.casefold() == self.connection.own_login.casefold() and same_text(remark.text, text)

    def approve(self, number: int, head: str | None) -> None:
        """Approve the present head. ConflictError if it is not `head`, or the pull request is not open."""
        pull = self.pulls.must(number)
        if pull.state != "open":
            raise ConflictError(f"pull request #{pull.number} is {state_of(pull)}")
        _must_be_head(pull, head)
        me = f"@{self.connection.own_login}"

        def approved() -> bool | None:
            return any((r.by, r.head) == (me, pull.head.sha) for r in self.pulls.standing(pull).approvals) or None

        if not approved():
            path = self._path("pulls", number, "/reviews")
            body = {"event": "APPROVE", "commit_id": pull.head.sha}
            self.connection.write(
                f"approving #{number} as {me}", lambda: bool(self.connection.request("POST", path, body)), approved
            )

    def close(self, number: int, comment: str | None) -> None:
        """Close without merging; one that is closed stays as it is. ConflictError if it is merged."""
        comment = require_text(comment, "the comment") if comment else None
        pull = self.pulls.must(number)
        if state_of(pull) == "merged":
            raise ConflictError(f"pull request #{number} is merged")
        if pull.state == "open":
            if comment and comment.strip():
                self.comment(number, comment)
            self.pulls.edit(number, f"closing #{number}", lambda there: there.state == "closed", state="closed")

    def blockers(self, pull: Pull, base_tip: str) -> Sequence[str]:
        """The rules of all forges, and what GitHub alone knows: objections, and members of the owning teams."""
        if not self.mirror.has(pull.head.sha):
            return [f"its head {pull.head.sha[:12]} is not to be had from {self.connection.address.git_url}"]
        record = with_base(self.mirror, self.pulls.as_record(pull), base_tip)
        if not record.engine:
            return [f"#{pull.number} is not the bot's; review and merge it on GitHub"]
        standing = self.pulls.standing(pull)
        approvals = standing.approvals
        if record.has_knowledge:
            owners = merging.read_codeowners(self.mirror.repo, base_tip)
            approvals = Owners(self.connection).with_teams(approvals, owners)
        record = record.model_copy(update={"reviews": approvals})
        found = merging.blockers(self.mirror.repo, record, base_tip, record.head)
        return [*found, *(f"{login} asks for changes" for login in standing.objectors)]

    def merge(self, number: int, base_tip: str, expected_head: str | None) -> MergeOutcome:
        """Merge exactly the head that was read. MergeRefusedError with our reasons, or with GitHub's."""
        pull = self.pulls.must(number)
        if state_of(pull) == "merged":
            return MergeOutcome(number, pull.merge_commit_sha, pull.base.ref)
        _must_be_head(pull, expected_head)
        if reasons := self.blockers(pull, base_tip):
            raise MergeRefusedError(number, reasons)
        path = self._path("pulls", number, "/merge")
        title = f"Merge pull request #{number}: {pull.title}"
        body = {"sha": pull.head.sha, "merge_method": "merge", "commit_title": title}

        def merged() -> str | None:
            now = self.pulls.must(number)
            return now.merge_commit_sha if state_of(now) == "merged" else None

        try:
            commit = self.connection.write(
                f"merging #{number}", lambda: str(self.connection.request("PUT", path, body)["sha"]), merged
            )
        except GitHubRefusedError as error:
            raise MergeRefusedError(number, [str(error)]) from error
        return MergeOutcome(number, commit, pull.base.ref)

    def _path(self, kind: str, number: int, rest: str) -> str:
        return f"/repos/{self.connection.address.slug}/{kind}/{number}{rest}"


def with_base(mirror: Mirror, record: PullRequest, base_tip: str) -> PullRequest:
    """With the commit that the head was made from, and whether it brings knowledge: as Git says, if it has the head."""
    if not mirror.has(record.head):
        return record
    # What is merged left the base where it stood then, which is what GitHub kept.
    base = record.base_sha if record.state == "merged" and mirror.has(record.base_sha) else base_tip
    change = merging.read_change(mirror.repo, base, record.head)
    if change is None:
        return record
    return record.model_copy(update={"base_sha": change.start, "has_knowledge": bool(change.below(KNOWLEDGE))})


def _must_be_head(pull: Pull, head: str | None) -> None:
    if head is not None and not (len(head) >= 7 and pull.head.sha.startswith(head)):
        raise ConflictError(
            f"pull request #{pull.number} has moved on: its head is {pull.head.sha[:12]}, not {head[:12]}; "
            "look at it again"
        )
