"""Putting a decision into effect on GitHub, in steps each of which may be the last one of a run.

There is no transaction over a branch and a pull request. So every step looks at what is there, does what is missing,
and leaves something from which the next run goes on: a branch without a pull request gets one, and a body that speaks
of another head than the branch's is written again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metainfer.forge import merging
from metainfer.forge.authorship import newest_of_bot
from metainfer.forge.github.connect import Connection
from metainfer.forge.github.conversation import Conversation
from metainfer.forge.github.mirror import Mirror
from metainfer.forge.github.pulls import HEAD, RETIRED, Pulls
from metainfer.forge.lifecycle import Action, Decision, Situation
from metainfer.forge.markdown import inline
from metainfer.forge.markers import INPUT_HASH, branch_of, one_line, read_marker, read_trailers, with_marker
from metainfer.forge.plumbing import Repository
from metainfer.forge.proposal import MAX_BODY_CHARACTERS, Proposal, same_change
from metainfer.forge.protocol import BOT, REGENERATE_LABEL, PublishOutcome, PublishRequest, PullRequest, Status

if TYPE_CHECKING:
    from github.PullRequest import PullRequest as Pull

ALREADY = 422
"""GitHub's answer to a second pull request for a branch, among other complaints."""


class Publication:
    """One request on its way to GitHub."""

    def __init__(self, connection: Connection, mirror: Mirror, request: PublishRequest) -> None:
        self.connection = connection
        self.mirror = mirror
        self.request = request
        self.proposal = Proposal(mirror.repo, request)
        self.pulls = Pulls(connection)
        self.conversation = Conversation(connection)
        self.branch = branch_of(request.engine)
        self.ref = f"refs/heads/{self.branch}"

    def carry_out(self, decision: Decision, seen: Situation, base_tip: str) -> PublishOutcome | None:
        """Do what was decided. None when others moved first: look again and decide anew."""
        outcome = decision.outcome
        if outcome.status is Status.BLOCKED:
            say_blocked(self.conversation, self.mirror.repo, decision, seen, base_tip)
            return outcome
        if decision.action is Action.RETIRE and decision.pull:
            self._retire(decision.pull)
            return outcome
        if decision.action is Action.REPAIR and decision.pull:
            # The branch may have come since it was fetched, with the pull request that the list shows.
            still = self.mirror.tip(self.ref) == seen.tip and self.mirror.has(decision.pull.head)
            return outcome if still and self._push(decision.pull.head, seen.tip) else None
        if decision.action in (Action.CREATE, Action.UPDATE):
            done = self._propose(decision, seen, base_tip)
            if seen.asked and done is not None and done.number and done.status is not Status.BLOCKED:
                self.conversation.take_label(done.number, REGENERATE_LABEL)
            return done
        return outcome

    def _propose(self, decision: Decision, seen: Situation, base_tip: str) -> PublishOutcome | None:
        current = decision.pull if decision.action is Action.UPDATE else None
        number = current.number if current else None
        if problem := self.proposal.base_problem(base_tip):
            return PublishOutcome(Status.BLOCKED, problem, number)
        if self.proposal.changes_nothing():
            if current:
                self._retire(current)
            reason = "the base already holds exactly these files, so there is nothing to propose"
            return PublishOutcome(Status.UNCHANGED, reason, number)
        head = self._head_to_keep(seen, base_tip) or self.proposal.head()
        if head == seen.tip and current and current.input_hash == self.request.input_hash:
            reason = f"pull request #{current.number} already proposes exactly these files"
            return PublishOutcome(Status.UNCHANGED, reason, current.number, head)
        replaced = seen.tip if seen.tip and not seen.tip_is_ours else None
        if replaced and decision.pull:
            self._say_replaced(decision.pull.number, replaced)  # first: once it is pushed, nothing tells what was there
        if head != seen.tip and not self._push(head, seen.tip):
            return None
        number, opened = self._describe(head, decision.pull if current is None else None)
        if replaced and not decision.pull:
            self._say_replaced(number, replaced)
        if self.mirror.tip(self.ref) != head:
            return None  # another run pushed meanwhile, and our words must not stand over its files
        if current is None and not opened:
            reason = f"pull request #{number} was there: another run opened it, or the answer to our opening was lost"
            return PublishOutcome(Status.UNCHANGED if head == seen.tip else Status.UPDATED, reason, number, head)
        return PublishOutcome(decision.outcome.status, decision.outcome.reason, number, head)

    def _head_to_keep(self, seen: Situation, base_tip: str) -> str | None:
        """The branch's own tip where it brings exactly this already: a push would only dismiss approvals."""
        tip = seen.tip
        if tip is None or not seen.tip_is_ours or not seen.head_fits_base:
            return None
        message = self.mirror.repo.read("log", "-1", "--format=%B", tip).decode("utf-8", "replace")
        same_inputs = read_trailers(message).get(INPUT_HASH) == self.request.input_hash
        return tip if same_inputs and same_change(self.mirror.repo, base_tip, tip, self.proposal.head()) else None

    def _push(self, head: str, old: str | None) -> bool:
        return self.mirror.push(self.ref, head, old)

    # The pull request

    def _describe(self, head: str, follows: PullRequest | None) -> tuple[int, bool]:
        """Make the one open pull request of the branch say what `head` is; its number, and whether we opened it."""
        request, title = self.request, one_line(self.request.title)
        body = with_marker(self._words(follows), request.engine, request.input_hash, **{HEAD: head})
        opened: list[Pull] = []

        def create() -> Pull:
            made = self.connection.repo.create_pull(base=request.base, head=self.branch, title=title, body=body)
            opened.append(made)
            return made

        pull = self._open() or self.connection.write(
            f"opening a pull request for {self.branch}", create, self._open, taken={ALREADY}
        )

        def says(there: Pull) -> bool:
            return _newlines(there.body) == _newlines(body) and there.title == title

        if not says(pull):
            self.pulls.edit(pull.number, f"describing pull request #{pull.number}", says, title=title, body=body)
        return int(pull.number), bool(opened)

    def _say_replaced(self, number: int, tip: str) -> None:
        text = f"Regenerating on request. The branch was at {tip}: `git fetch origin {tip}` still gets it."
        self.conversation.say(number, f"replaced:{tip}", text)

    def _words(self, follows: PullRequest | None) -> str:
        if follows is None:
            return self.request.body
        note = f"Follows #{follows.number}, which {inline(follows.closed_by or BOT.label)} closed.\n\n"
        fits = len(note) + len(self.proposal.body) <= MAX_BODY_CHARACTERS
        return note + self.request.body if fits else self.request.body

    def _open(self) -> Pull | None:
        """The open pull request of the branch. Somebody may have opened it by hand: it is ours from then on."""
        found = (pull for pull in self.pulls.of_engine(self.request.engine, self.request.base) if pull.state == "open")
        return next(found, None)

    def _retire(self, current: PullRequest) -> None:
        """Close what the base has made needless. The mark in the body is what tells it from a person's refusal."""
        if current.state != "open":
            return
        marker = read_marker(current.body)
        marker |= {"engine": current.engine, "input_hash": marker.get("input_hash", current.input_hash), RETIRED: "yes"}
        body = with_marker(current.body, marker.pop("engine"), marker.pop("input_hash"), **marker)
        text = f"Closed: {self.request.base} already holds what this would bring."
        self.conversation.say(current.number, "retired", text)
        what = f"closing pull request #{current.number}"
        self.pulls.edit(current.number, what, lambda pull: pull.state != "open", body=body, state="closed")


def say_blocked(
    conversation: Conversation, repo: Repository, decision: Decision, seen: Situation, base_tip: str
) -> None:
    """One comment, once for each head of the bot's that a person built upon."""
    current = decision.pull
    if current is None or current.state != "open" or seen.tip is None:
        return
    start = merging.read_change(repo, base_tip, seen.tip)
    ours = newest_of_bot(repo, start.start, seen.tip) if start else None
    key = f"blocked:{(ours or 'none')[:40]}"
    if not conversation.has_said(current.number, key):
        text = f"Stopped: {decision.outcome.reason}. A comment `/metainfer regenerate` does the same."
        conversation.say(current.number, key, text)


def _newlines(text: str | None) -> str:
    return (text or "").replace("\r\n", "\n").rstrip()
