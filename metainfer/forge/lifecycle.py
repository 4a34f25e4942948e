"""What to do about one engine, given what is there: the rules of the bot, without any forge in them.

State is derived from what the repository holds each time, never from a label or a database, so that a half-done
run, a deleted branch or a merge by hand is seen and mended by the next run instead of wedging it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from metainfer.forge.protocol import BOT, REGENERATE_LABEL, PublishOutcome, PullRequest, Status


class Action(Enum):
    """The one thing that a publication does."""

    NOTHING = "nothing"
    CREATE = "create"
    UPDATE = "update"
    REPAIR = "repair"
    """The record is right and the branch is not where it says: an earlier run stopped half-way."""
    RETIRE = "retire"
    """The base already holds what the open pull request would bring."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the rules look at. `pulls` are those of this engine and base, oldest first, merges by hand noted."""

    pulls: Sequence[PullRequest]
    tip: str | None
    """Where the engine's branch stands; None if there is no branch."""
    tip_is_ours: bool
    """Whether the bot made every commit that the branch adds to the base."""
    base_input_hash: str | None
    """The inputs of the engine that the base holds; None if it holds none."""
    head_fits_base: bool = True
    """Whether the open pull request's head can still be merged into the base."""

    @property
    def open(self) -> PullRequest | None:
        """The open pull request, if there is one."""
        return next((pull for pull in reversed(self.pulls) if pull.state == "open"), None)

    @property
    def asked(self) -> bool:
        """Whether a label on the open pull request asks for it to be made again."""
        return self.open is not None and REGENERATE_LABEL in self.open.labels


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, on which pull request, and what to tell the caller if it works out."""

    action: Action
    outcome: PublishOutcome
    pull: PullRequest | None = None
    """The one to change, or, for CREATE, the closed one that the new one follows."""


def decide(seen: Situation, input_hash: str, *, regenerate: bool = False) -> Decision:
    """The bot's next step for an engine with these inputs."""
    pull = seen.open
    if seen.tip and not seen.tip_is_ours and not regenerate:
        return _blocked(pull or (seen.pulls[-1] if seen.pulls else None), seen.tip)
    if seen.base_input_hash == input_hash and not regenerate:
        return _already_on_base(pull)
    if pull:
        return _with_open(seen, pull, input_hash, regenerate)
    return _without_open(seen.pulls, input_hash, regenerate)


def _with_open(seen: Situation, pull: PullRequest, input_hash: str, regenerate: bool) -> Decision:
    number = pull.number
    if pull.input_hash == input_hash and seen.head_fits_base and not regenerate:
        if seen.tip == pull.head:
            reason = f"pull request #{number} already proposes exactly these inputs"
            return Decision(Action.NOTHING, PublishOutcome(Status.UNCHANGED, reason, number, pull.head), pull)
        reason = f"the branch of pull request #{number} was put back to its recorded head"
        return Decision(Action.REPAIR, PublishOutcome(Status.UPDATED, reason, number, pull.head), pull)
    reason = (
        f"pull request #{number}: inputs changed"
        if pull.input_hash != input_hash
        else f"pull request #{number}: {'regenerated on request' if regenerate else 'the base moved under it'}"
    )
    return Decision(Action.UPDATE, PublishOutcome(Status.UPDATED, reason, number), pull)


def _without_open(pulls: Sequence[PullRequest], input_hash: str, regenerate: bool) -> Decision:
    previous = pulls[-1] if pulls and pulls[-1].state == "closed" else None
    if not regenerate and (refused := _refusal(pulls, input_hash)):
        reason = (
            f"{refused.closed_by} closed pull request #{refused.number} for exactly these inputs; "
            "change the spec, or ask for it with --regenerate"
        )
        return Decision(Action.NOTHING, PublishOutcome(Status.CLOSED, reason, refused.number), refused)
    return Decision(Action.CREATE, PublishOutcome(Status.CREATED, "new pull request"), previous)


def _refusal(pulls: Sequence[PullRequest], input_hash: str) -> PullRequest | None:
    """A pull request for these inputs that a person closed, unless another was merged since."""
    for pull in reversed(pulls):
        if pull.state == "merged":
            return None
        if pull.state == "closed" and pull.closed_by != BOT.label and pull.input_hash == input_hash:
            return pull
    return None


def _already_on_base(pull: PullRequest | None) -> Decision:
    reason = "the base already holds the engine that these inputs make"
    if pull is None:
        return Decision(Action.NOTHING, PublishOutcome(Status.UNCHANGED, reason))
    reason += f"; pull request #{pull.number} is no longer needed"
    return Decision(Action.RETIRE, PublishOutcome(Status.UNCHANGED, reason, pull.number), pull)


def _blocked(pull: PullRequest | None, tip: str) -> Decision:
    reason = (
        f"the branch holds commits that the bot did not make (tip {tip[:12]}); they were left alone. "
        "Move them elsewhere; or, to replace them, run again with --regenerate or put the label "
        f"{REGENERATE_LABEL} on for the next run"
    )
    return Decision(Action.NOTHING, PublishOutcome(Status.BLOCKED, reason, pull.number if pull else None, tip), pull)
