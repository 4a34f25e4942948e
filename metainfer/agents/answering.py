"""Gets replies for the questions of a round: holds the model's key, and runs nothing that a model wrote.

It sends what `metainfer.agents.admission` let pass, by the client of every run: booked before, settled after, written
down, stopped by whoever may stop it. What it leaves in the folder of the run has no key in it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from metainfer.agents.admission import IMPLEMENTER
from metainfer.agents.budget import BudgetError, Entry, Ledger, Limits, Price, Purpose
from metainfer.agents.client import AnswerError, ChatClient, Endpoint, EndpointError
from metainfer.agents.correspondence import Correspondence, Refusal
from metainfer.agents.messages import ChatRequest, Reply
from metainfer.agents.prices import price_for
from metainfer.agents.probe import probe
from metainfer.agents.requests import PendingRequest, RequestsError
from metainfer.agents.transcript import Transcript
from metainfer.files import pretty_json, write_atomic
from metainfer.spec.models import Generation


@dataclass(frozen=True)
class Line:
    """Where the model is, what it may cost, and who may stop it. Nothing of it comes from a question."""

    base_url: str
    api_key: str = field(default="", repr=False)
    price: Price | None = None
    """As a person gave it; None is the listed one, and nothing for a machine of one's own."""
    concurrency: int = 2
    most_calls: int | None = None
    """Over all rounds, attempts that failed counted."""
    halted: Callable[[], str] | None = field(default=None, repr=False)

    def bounded(self, most_calls: int) -> Line:
        """The same, with at most so many calls where nobody has set another bound."""
        return self if self.most_calls is not None else replace(self, most_calls=most_calls)

    def endpoint(self, model: str) -> Endpoint:
        return Endpoint(self.base_url, model, self.api_key)


@dataclass(frozen=True)
class Answered:
    """What became of a round's questions, and what the run has cost so far."""

    replies: int
    refusals: Mapping[str, int]
    """Kind (`budget`, `answer`, `endpoint`) to how many."""
    spent: Entry
    mark: str
    """Of the ledger as it is now: what the next round must begin with."""

    @property
    def bill(self) -> str:
        """`TOKENS,USD` of the run so far, as an engine's manifest has them when this was the last round."""
        return f"{self.spent.tokens},{round(self.spent.usd, 6)!r}"

    def in_words(self) -> str:
        refused = ", ".join(f"{count} refused ({kind})" for kind, count in sorted(self.refusals.items()))
        so_far = f"{self.spent.call} calls, {self.spent.tokens:,} tokens, {self.spent.usd:.4f} USD"
        return f"{self.replies} replies{', ' if refused else ''}{refused}; the run so far: {so_far}"


def answer_all(
    pending: Sequence[PendingRequest], folder: Correspondence, generation: Generation, line: Line
) -> Answered:
    """Ask every question that has no reply, in their order, and keep what comes.

    A question that the budget does not reach, or that the endpoint refuses, is noted with the reason. Raises
    StoppedError if a person wants no call, and EndpointError if the endpoint fails one that is to write; what came
    until then is kept, and asking again goes on from there. Where it fails an adviser alone, the run goes on without
    that advice, as it does in one process.
    """
    model = generation.model or ""
    price = line.price or price_for(model, line.base_url)
    ledger = Ledger(
        folder.ledger,
        Limits(
            usd=generation.budget_usd if price else None,
            tokens=generation.budget_tokens,
            wall_s=generation.budget_wall_s,
            calls=line.most_calls,
        ),
        price=price,
        stop_file=folder.stop_file,
        halted=line.halted,
    )
    return asyncio.run(_answer_all(pending, folder, generation, line, ledger))


async def _answer_all(
    pending: Sequence[PendingRequest], folder: Correspondence, generation: Generation, line: Line, ledger: Ledger
) -> Answered:
    model = generation.model or ""
    endpoint = line.endpoint(model)
    client = ChatClient(
        endpoint,
        ledger=ledger,
        replies=folder.replies,
        transcript=Transcript(folder.transcript, endpoint.secrets),
        concurrency=line.concurrency,
    )
    refused: list[tuple[PendingRequest, Refusal]] = []

    async def one(asked: PendingRequest) -> bool:
        try:
            await client.ask(asked.request, asked.purpose)
        except (BudgetError, EndpointError) as error:
            refusal = Refusal.of(error)
            if refusal.kind == "endpoint" and asked.purpose.role == IMPLEMENTER:
                raise
            refused.append((asked, refusal))
            return False
        return True

    async with client:
        found = await probe(_Remembering(client, folder), model, tools=generation.tools, schema=bool(generation.roles))
        write_atomic(folder.endpoint, pretty_json({"base_url": endpoint.shown_url} | asdict(found)))
        ended = await asyncio.gather(*map(one, pending), return_exceptions=True)
    failed = next((error for error in ended if isinstance(error, BaseException)), None)
    for asked, refusal in refused:
        if failed is None or refusal.kind != "endpoint":  # who asks again, asks the advisers again too
            folder.refuse(asked.request, refusal)
    if failed is not None:
        raise failed
    kinds: Counter[str] = Counter(refusal.kind for _, refusal in refused)
    return Answered(sum(map(bool, ended)), dict(kinds), ledger.spent(), ledger_mark(folder))


class _Remembering:
    """The client as the probe uses it: what the endpoint would not answer in one round, it is not asked in the next."""

    def __init__(self, client: ChatClient, folder: Correspondence) -> None:
        self.endpoint = client.endpoint
        self.dialect = client.dialect
        self.list_models = client.list_models
        self._client = client
        self._folder = folder

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Reply:
        refusal = self._folder.refusal(request)
        if refusal is not None and refusal.kind == "answer":
            raise refusal.error()
        try:
            return await self._client.ask(request, purpose)
        except AnswerError as error:
            self._folder.refuse(request, Refusal.of(error))
            raise


def ledger_mark(folder: Correspondence) -> str:
    """`LENGTH:SHA256` of the ledger's bytes. A later one of the same run begins with them: it only grows."""
    data = folder.ledger.read_bytes() if folder.ledger.exists() else b""
    return f"{len(data)}:{hashlib.sha256(data).hexdigest()}"


def require_mark(folder: Correspondence, mark: str) -> None:
    """Raise RequestsError unless the ledger begins with what `mark` was taken of: nothing spent is forgotten."""
    size, _, digest = mark.partition(":")
    data = folder.ledger.read_bytes() if folder.ledger.exists() else b""
    known = data[: int(size)] if size.isdigit() else b""
    if not size.isdigit() or len(known) != int(size) or hashlib.sha256(known).hexdigest() != digest:
        raise RequestsError(
            f"{folder.ledger}: is not the ledger that the round before left ({ascii(mark)[:80]}): it forgets calls"
        )
