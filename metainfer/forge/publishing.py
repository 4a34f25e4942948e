"""Turning a decision into a local forge's records and ref moves; the caller moves the refs, which shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metainfer.forge.lifecycle import Action, Decision, Situation
from metainfer.forge.markdown import inline
from metainfer.forge.markers import branch_of, one_line
from metainfer.forge.plumbing import RefUpdate, Repository
from metainfer.forge.proposal import MAX_BODY_CHARACTERS, Proposal, same_change
from metainfer.forge.protocol import (
    BOT,
    REGENERATE_LABEL,
    Comment,
    PublishOutcome,
    PublishRequest,
    PullRequest,
    Status,
)
from metainfer.forge.records import PullStore, Recorded, now

Moves = Sequence[RefUpdate]


class Publication:
    """One request on its way into the repository."""

    def __init__(self, repo: Repository, store: PullStore, request: PublishRequest) -> None:
        self.repo = repo
        self.store = store
        self.request = request
        self.branch = f"refs/heads/{branch_of(request.engine)}"
        self.proposal = Proposal(repo, request)

    def carry_out(
        self,
        decision: Decision,
        seen: Situation,
        all_pulls: Sequence[Recorded],
        current: Recorded | None,
        base_tip: str,
    ) -> tuple[Moves, PublishOutcome]:
        """The ref moves that put a decision into effect, and the outcome once they are made."""
        outcome = decision.outcome
        if outcome.status is Status.BLOCKED:
            return self._say_blocked(current, outcome), outcome
        if decision.action is Action.REPAIR and current:
            return [RefUpdate(self.branch, current.pull.head, seen.tip)], outcome
        if decision.action is Action.RETIRE and current:
            return [self._retired(current)], outcome
        if decision.action in (Action.CREATE, Action.UPDATE):
            return self._propose(decision, seen, all_pulls, current, base_tip)
        return [], outcome

    def _propose(
        self,
        decision: Decision,
        seen: Situation,
        all_pulls: Sequence[Recorded],
        current: Recorded | None,
        base_tip: str,
    ) -> tuple[Moves, PublishOutcome]:
        if blocked := self.proposal.base_problem(base_tip):
            return [], PublishOutcome(Status.BLOCKED, blocked, current.pull.number if current else None)
        head = self.proposal.head()
        if self.proposal.changes_nothing():
            reason = "the base already holds exactly these files, so there is nothing to propose"
            outcome = PublishOutcome(Status.UNCHANGED, reason, current.pull.number if current else None)
            return ([self._retired(current)] if current else []), outcome
        if current and self._already_proposed(head, current.pull, seen, base_tip):
            reason = f"pull request #{current.pull.number} already proposes exactly these files"
            moves = [self._changed(current, {"labels": _labels(current)}, "made again")] if seen.asked else []
            return moves, PublishOutcome(Status.UNCHANGED, reason, current.pull.number, current.pull.head)
        branch_move = RefUpdate(self.branch, head, seen.tip)
        # A replaced branch stays reachable from the record, whoever made it.
        keep = [seen.tip] if seen.tip else []
        if current:
            record = self._updated(current, head, decision.outcome.reason, keep, seen)
            number = current.pull.number
        else:
            number = len(all_pulls) + 1
            record = self._created(number, head, decision.pull, keep)
        outcome = PublishOutcome(decision.outcome.status, decision.outcome.reason, number, head)
        return [branch_move, record], outcome

    def _already_proposed(self, head: str, pull: PullRequest, seen: Situation, base_tip: str) -> bool:
        """The same files, for the same inputs, on a branch that is where it should be: keep head and approvals."""
        return (
            seen.tip == pull.head
            and seen.head_fits_base
            and pull.input_hash == self.request.input_hash
            and same_change(self.repo, base_tip, head, pull.head)
        )

    # Records

    def _created(self, number: int, head: str, previous: PullRequest | None, keep: Sequence[str]) -> RefUpdate:
        body = self.proposal.body
        if previous:
            note = f"Follows #{previous.number}, which {inline(previous.closed_by or BOT.label)} closed.\n\n"
            body = note + body if len(note) + len(body) <= MAX_BODY_CHARACTERS else body
        at = now()
        pull = PullRequest(
            number=number,
            engine=self.request.engine,
            branch=branch_of(self.request.engine),
            base=self.request.base,
            state="open",
            created=at,
            follows=previous.number if previous else None,
            **{**self._proposal(head), "body": body, "updated": at},
        )
        return self.store.change(pull, None, "opened", BOT, keep)

    def _updated(self, current: Recorded, head: str, reason: str, keep: Sequence[str], seen: Situation) -> RefUpdate:
        news = {**self._proposal(head), "updated": now(), "labels": _labels(current)}
        if seen.tip and not seen.tip_is_ours:
            text = f"Regenerated on request. The branch was at {seen.tip}, which this record keeps reachable."
            note = Comment(by=BOT.label, at=now(), text=text, head=head)
            news["comments"] = (*current.pull.comments, note)
        return self._changed(current, news, f"updated: {reason}", keep)

    def _proposal(self, head: str) -> dict[str, object]:
        return {
            "head": head,
            "title": one_line(self.request.title),
            "body": self.proposal.body,
            "base_sha": self.request.base_sha,
            "input_hash": self.request.input_hash,
            "has_knowledge": self.proposal.brings_knowledge(),
        }

    def _retired(self, current: Recorded) -> RefUpdate:
        text = f"Closed: {self.request.base} already holds what this would bring."
        note = Comment(by=BOT.label, at=now(), text=text, head=current.pull.head)
        comments = (*current.pull.comments, note)
        news = {"state": "closed", "closed_by": BOT.label, "updated": now(), "comments": comments}
        return self._changed(current, news, "no longer needed")

    def _say_blocked(self, current: Recorded | None, outcome: PublishOutcome) -> Moves:
        """One comment, once for each head of the bot's that a person built upon."""
        if current is None or outcome.head is None:
            return []
        pull = current.pull
        if any(note.kind == "blocked" and note.head == pull.head for note in pull.comments):
            return []
        note = Comment(by=BOT.label, at=now(), text=f"Stopped: {outcome.reason}.", kind="blocked", head=pull.head)
        return [self._changed(current, {"comments": (*pull.comments, note), "updated": now()}, "blocked")]

    def _changed(self, current: Recorded, news: Mapping[str, object], what: str, keep: Sequence[str] = ()) -> RefUpdate:
        return self.store.change(current.pull.model_copy(update=news), current.sha, what, BOT, keep)


def _labels(current: Recorded) -> tuple[str, ...]:
    """Those that stay: to be made again is asked once."""
    return tuple(name for name in current.pull.labels if name != REGENERATE_LABEL)
