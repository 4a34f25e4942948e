"""Answers from kept replies alone: no key, no endpoint.

A question without a reply is noted, and its conversation pauses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from metainfer.agents.budget import BudgetError, Purpose
from metainfer.agents.client import Endpoint
from metainfer.agents.correspondence import Correspondence
from metainfer.agents.dialect import Dialect
from metainfer.agents.messages import ChatRequest, Reply
from metainfer.agents.pausing import PausedError
from metainfer.agents.probe import PROBE
from metainfer.agents.requests import PendingRequest
from metainfer.agents.transcript import Transcript, Turn
from metainfer.files import write_atomic


@dataclass(frozen=True)
class Recorded:
    """Where the replies of a run lie, and what to do about those that are missing."""

    correspondence: Correspondence
    verdicts: Path
    """Folder of what was found in each file that was judged, so that no round judges it again."""
    final: bool = False
    """There is no further round: who has no reply gets none, as if the budget were used up."""
    pending: list[PendingRequest] = field(default_factory=list)
    """Questions without a reply, filled while the run goes on."""

    concurrency: int = 2
    """Of what is judged, as where a model is asked."""

    @property
    def shown_url(self) -> str:
        """Where the model was, as it was noted."""
        return str(self.correspondence.found_endpoint().get("base_url", ""))

    def copy_ledger(self, book: Path) -> None:
        """Put what was spent where a run looks for it."""
        there = self.correspondence.ledger
        write_atomic(book, there.read_bytes() if there.exists() else b"")


class RecordedClient:
    """Stands in for a client of an endpoint."""

    def __init__(self, recorded: Recorded, model: str, transcript: Transcript) -> None:
        self.endpoint = Endpoint(recorded.shown_url, model)
        self.dialect = Dialect()
        self._recorded = recorded
        self._transcript = transcript
        self._order: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Who was first to ask anything comes first: the plan's order, whatever the judge took its time for.
        self._recorded.pending.sort(key=lambda one: self._order[one.purpose.subject])

    async def list_models(self) -> dict[str, int | None]:
        """The model, if anybody has asked the endpoint yet."""
        found = self._recorded.correspondence.found_endpoint()
        context = found.get("context_tokens")
        return {self.endpoint.model: context if isinstance(context, int) else None} if found else {}

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Reply:
        """The kept reply. Raises what the endpoint's client raised instead of one, and PausedError if nobody asked."""
        self._order.setdefault(purpose.subject, len(self._order))
        correspondence = self._recorded.correspondence
        if kept := correspondence.replies.get(request):
            self._transcript.add(Turn(purpose=purpose, request=request, reply=kept, from_store=True))
            return kept
        if refusal := correspondence.refusal(request):
            self._transcript.add(Turn(purpose=purpose, request=request, error=refusal.words))
            raise refusal.error()
        if purpose.role == PROBE:  # whoever asks probes for himself
            raise BudgetError("the endpoint has not been asked yet")
        if self._recorded.final:
            why = "the rounds of this run are used up"
            self._transcript.add(Turn(purpose=purpose, request=request, error=why))
            raise BudgetError(why)
        self._recorded.pending.append(PendingRequest.of(request, purpose))
        raise PausedError(f"{purpose.role} for {purpose.subject}, round {purpose.round}")
