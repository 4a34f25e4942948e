"""A client of a scripted endpoint, with its ledger, store and transcript in a folder of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from metainfer.agents.budget import Ledger, Limits, Price, Purpose
from metainfer.agents.client import ChatClient, Endpoint
from metainfer.agents.messages import ChatRequest, Message, Reply
from metainfer.agents.replies import ReplyStore
from metainfer.agents.transcript import Transcript, Turn, read_transcript

PRICE = Price(input_usd=1_000_000.0, output_usd=2_000_000.0)
"""A dollar per token in and two per token out: sums that can be done by eye."""


def question(text: str = "hello", **fields: Any) -> ChatRequest:
    given: dict[str, Any] = {"model": "scripted", "max_tokens": 100} | fields
    return ChatRequest(messages=(Message(role="user", content=text),), **given)


@dataclass
class Desk:
    """Everything one run keeps, and a way to ask."""

    folder: Path
    limits: Limits = field(default_factory=Limits)
    options: dict[str, Any] = field(default_factory=dict)
    halted: Callable[[], str] | None = None

    def ledger(self) -> Ledger:
        return Ledger(
            self.folder / "ledger.jsonl",
            self.limits,
            price=PRICE,
            stop_file=self.folder / "STOP",
            halted=self.halted,
        )

    def ask(self, base_url: str, *requests: ChatRequest, concurrency: int = 4, **endpoint: Any) -> list[Reply]:
        """Ask all at once; the first error is raised."""

        async def run() -> list[Reply]:
            client = self.client(base_url, concurrency=concurrency, **endpoint)
            async with client:
                asked = [client.ask(request, Purpose(role="implementer", subject="unit")) for request in requests]
                return await asyncio.gather(*asked)

        return asyncio.run(run())

    def client(self, base_url: str, *, concurrency: int = 4, **endpoint: Any) -> ChatClient:
        quick: dict[str, Any] = {"attempts": 3, "first_wait_s": 0.01, "idle_s": 5.0, "total_s": 10.0} | endpoint
        return ChatClient(
            Endpoint(base_url, "scripted", api_key="top-secret-key", **quick),
            ledger=self.ledger(),
            replies=ReplyStore(self.folder / "replies"),
            transcript=Transcript(self.folder / "transcript.jsonl", ["top-secret-key"]),
            concurrency=concurrency,
        )

    @property
    def turns(self) -> list[Turn]:
        return list(read_transcript(self.folder / "transcript.jsonl"))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)
