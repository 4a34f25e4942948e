"""What the dashboard tells, as data. All of it is derived anew each time; nothing is remembered between runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine: what the base branch holds, and what waits beside it. Strings are untrusted text."""

    name: str
    spec: bool
    """Whether there is a spec of that name."""
    release: str = ""
    verdict: str = ""
    """Of the engine on the base branch; "" if there is none."""
    judged: str = ""
    """When, ISO 8601."""
    lines: int = 0
    speed: str = ""
    """How fast beside its peers, in Markdown that is safe to show."""
    model: str = ""
    """The language model that wrote units of it, if one did."""
    spent_usd: float = 0.0
    budget_usd: float = 0.0
    pull: int = 0
    """Number of the open pull request; 0 is none."""
    pull_verdict: str = ""
    pull_spent_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class ReviewFacts:
    """A pull request that changes knowledge."""

    number: int
    title: str
    state: str
    """Of the check; "" if it was not judged yet."""
    words: str
    weakened: bool


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The newest run of one workflow, and its newest success. Times are ISO 8601; "" is never, as far as it shows."""

    workflow: str
    last: str = ""
    outcome: str = ""
    """success, failure, cancelled, …; or in_progress, queued."""
    url: str = ""
    succeeded: str = ""
    unread: bool = False
    """The token may not look: then nothing is said about the workflow."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything on the dashboard."""

    engines: Sequence[EngineFacts]
    reviews: Sequence[ReviewFacts]
    runs: Sequence[RunFacts]
    outcome: str = ""
    """How the run that keeps the dashboard went by then; "" where it was not told."""
    run_url: str = ""
