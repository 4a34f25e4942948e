"""What a place for pull requests must offer, in types; the local forge, GitHub and the dry run all answer to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from metainfer.errors import ConflictError, InputError, RefusedError

DEFAULT_BASE = "main"
STOP_LABEL = "metainfer/stop"
"""On an engine's open pull request: no model is asked anything for that engine."""
REGENERATE_LABEL = "metainfer/regenerate"
"""On an engine's open pull request: the next run makes it again, over people's commits, and takes the label off."""
State = Literal["open", "closed", "merged"]


class NoSuchPullError(InputError):
    """There is no pull request with that number."""


class NoForgeError(InputError):
    """No forge is configured, or the configured one is not there."""


class PublishRefusedError(RefusedError):
    """The files of a publication leave their folder, or are of a kind that no engine needs. Nothing was written."""


class MergeRefusedError(ConflictError):
    """The pull request must not be merged as it stands; `reasons` says everything that is in the way."""

    def __init__(self, number: int, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"pull request #{number} cannot be merged:\n" + "\n".join(f"  - {r}" for r in reasons))


class LostRaceError(ConflictError):
    """Others kept moving the same refs for as long as we tried, or a stale lock file blocks them."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who does something. `handle` is a forge user or team such as `@org/knowledge`, if that is how they sign."""

    name: str
    email: str
    handle: str | None = None

    @property
    def label(self) -> str:
        """What records and code-owner rules know this person by."""
        return self.handle or self.email

    def is_same_person(self, other: Identity) -> bool:
        """Whether the two have a label or address in common, in whatever case: mail hosts do not tell cases apart."""
        mine, theirs = ({who.label.casefold(), who.email.casefold()} for who in (self, other))
        return not mine.isdisjoint(theirs)


BOT = Identity("metainfer bot", "bot@metainfer.invalid")
"""Commits on a bot branch carry this committer; anything else on it is a person's work and is left alone."""


class Review(BaseModel):
    """An approval of exactly one head; a new head needs a new one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: str
    name: str
    head: str
    at: str


class Comment(BaseModel):
    """One comment. `blocked` is the bot saying, once per head, that a person's commits stop it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: str
    at: str
    text: str
    kind: Literal["note", "blocked"] = "note"
    head: str


class PullRequest(BaseModel):
    """A pull request as the forge records it. Times are ISO 8601 in UTC, commits full hex ids."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=1)
    engine: str
    branch: str
    base: str
    base_sha: str
    title: str
    state: State
    head: str
    input_hash: str
    has_knowledge: bool
    """Whether the head holds a second commit, with proposals under ckb/."""
    created: str
    updated: str
    closed_by: str | None = None
    merge_commit: str | None = None
    follows: int | None = None
    """The closed pull request for this engine that this one comes after."""
    body: str = ""
    labels: tuple[str, ...] = ()
    comments: tuple[Comment, ...] = ()
    reviews: tuple[Review, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """One engine to propose. Paths are relative to the repository's root; content is text in UTF-8."""

    engine: str
    input_hash: str
    base_sha: str
    """The commit whose gates and knowledge made and judged the engine."""
    engine_files: Mapping[str, bytes]
    """The whole of engines/<engine>/: what is not here is removed there."""
    title: str
    body: str
    proposal_files: Mapping[str, bytes] = field(default_factory=dict)
    """New or changed files under ckb/; each travels in its own commit and needs a code owner's approval."""
    trailers: Mapping[str, str] = field(default_factory=dict)
    base: str = DEFAULT_BASE
    regenerate: bool = False
    """A person asked for it: overrides `unchanged`, `closed` and `blocked` for the branch as it stands now."""


class Status(StrEnum):
    """What became of a publication."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    CLOSED = "closed"
    """A person closed the pull request for these inputs; it stays closed until the inputs change."""
    BLOCKED = "blocked"
    """A person's commits, or a base that moved, are in the way; nothing of theirs was touched."""


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """What a publication did, or what `preview` says it would do."""

    status: Status
    reason: str
    number: int | None = None
    head: str | None = None

    @property
    def wrote(self) -> bool:
        """Whether a branch moved or a pull request was opened."""
        return self.status in (Status.CREATED, Status.UPDATED)


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """A finished merge: the commit that is now on the base branch."""

    number: int
    commit: str
    base: str


@runtime_checkable
class Forge(Protocol):
    """A repository with pull requests. Every write is safe to repeat: a second try finds the first one's work."""

    def address(self) -> str:
        """What `git pull` and `git push` know the repository by, from any folder."""
        ...

    def base_sha(self, base: str = DEFAULT_BASE) -> str:
        """The commit at the tip of `base`. InputError if there is no such branch."""
        ...

    def read_file(self, ref: str, path: str) -> bytes | None:
        """The content of a file at a commit or branch; None if there is none."""
        ...

    def read_tree(self, ref: str, folder: str) -> dict[str, bytes]:
        """All files below `folder` at a commit, by their path from the repository's root."""
        ...

    def read_link(self, ref: str, path: str) -> str | None:
        """The commit that the submodule at `path` is pinned to, at a commit or branch; None if there is none."""
        ...

    def find_open(self, engine: str, base: str = DEFAULT_BASE) -> PullRequest | None:
        """The bot's open pull request for an engine: by branch, base, state and marker."""
        ...

    def get(self, number: int) -> PullRequest:
        """One pull request. NoSuchPullError if there is none."""
        ...

    def list(self, state: State | Literal["all"] = "open") -> Sequence[PullRequest]:
        """Pull requests in the order of their numbers."""
        ...

    def diff(self, number: int) -> str:
        """The unified diff of a pull request against the commit it started from."""
        ...

    def preview(self, engine: str, input_hash: str, base: str = DEFAULT_BASE) -> PublishOutcome:
        """What publishing these inputs would come to; writes nothing. Cheap: asked before any generation."""
        ...

    def publish(self, request: PublishRequest) -> PublishOutcome:
        """Propose an engine: open, update, or leave alone its one pull request."""
        ...

    def comment(self, number: int, by: Identity, text: str) -> PullRequest:
        """Add a comment; one that is this person's own last word there already, letter for letter, is not said again."""
        ...

    def label(self, number: int, by: Identity, name: str, *, remove: bool = False) -> PullRequest:
        """Put a label on a pull request, or take it off; one that is there already, or is not, stays as it is."""
        ...

    def approve(self, number: int, by: Identity, head: str | None = None) -> PullRequest:
        """Approve the head that is there now; ConflictError if `head` (full or abbreviated) is another."""
        ...

    def close(self, number: int, by: Identity, comment: str | None = None) -> PullRequest:
        """Close without merging: the bot will not reopen it until its inputs change."""
        ...

    def merge_blockers(self, number: int) -> Sequence[str]:
        """Everything that stands in the way of a merge; empty means merge-ready."""
        ...

    def merge(self, number: int, by: Identity, expected_head: str | None = None) -> MergeOutcome:
        """Merge the reviewed head. MergeRefusedError with all reasons if it must not be."""
        ...

    def tags(self, prefix: str) -> dict[str, str]:
        """Tag names that start with `prefix` → the commit each one points at, through the tag object."""
        ...

    def last_change(self, ref: str, folder: str) -> str | None:
        """The newest commit on the first-parent line of `ref` that changed `folder`."""
        ...

    def create_tag(self, name: str, commit: str, message: str, tagger: Identity) -> bool:
        """Create an annotated tag; False if the name is taken. Never moves a tag."""
        ...
