"""A model that plays every role, by its system prompt, and what the tests of the roles share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from metainfer.agents.budget import Ledger, Limits
from metainfer.agents.client import ChatClient, Endpoint
from metainfer.agents.replies import ReplyStore
from metainfer.agents.structured import Asker
from metainfer.agents.transcript import Transcript
from metainfer.ckb.models import Contract
from metainfer.ckb.store import KnowledgeBase
from tests.agents.scripted_endpoint import Act, ScriptedEndpoint, scripted

CKB = Path(__file__).parents[2] / "ckb"
_T = TypeVar("_T")
Body = dict[str, Any]

BEGINNINGS = {
    "You plan how": "planner",
    "You review one file": "reviewer",
    "You keep the record": "consolidator",
    "You are an engineer": "implementer",
}


def role_of(body: Body) -> str:
    return next(role for words, role in BEGINNINGS.items() if body["messages"][0]["content"].startswith(words))


def by_role(**answers: Callable[[Body], str]) -> Callable[[Body], str]:
    """What each role answers; a role that is not named answers nothing that can be used."""
    return lambda body: answers.get(role_of(body), lambda _: "I would rather not.")(body)


def said(body: Body) -> str:
    return "\n".join(message["content"] for message in body["messages"])


def contract(name: str) -> Contract:
    return KnowledgeBase.load(CKB).contracts[name]


def ask_with(
    folder: Path,
    act: Act,
    talk: Callable[[Asker], Coroutine[Any, Any, _T]],
    limits: Limits | None = None,
) -> tuple[_T, ScriptedEndpoint]:
    """What `talk` makes of a model behind a scripted endpoint, and the endpoint, which remembers what it was asked."""

    async def run(base_url: str) -> _T:
        client = ChatClient(
            Endpoint(base_url, "scripted", attempts=2, first_wait_s=0.01),
            ledger=Ledger(folder / "ledger.jsonl", limits or Limits()),
            replies=ReplyStore(folder / "replies"),
            transcript=Transcript(folder / "transcript.jsonl"),
        )
        async with client:
            return await talk(Asker(client, "scripted", 2000))

    with scripted(act) as endpoint:
        return asyncio.run(run(endpoint.base_url)), endpoint


def objection(clause: str, line: int, quote: str, why: str = "x = 0 gives NaN.") -> dict[str, Any]:
    return {"clause": clause, "line": line, "quote": quote, "why": why}


def objections(*given: dict[str, Any]) -> str:
    return json.dumps({"objections": list(given)})


def mistakes(*given: dict[str, str]) -> str:
    return json.dumps({"mistakes": list(given)})


def plan(*given: tuple[str, int, int, bool], why: str = "Easy ones first.") -> str:
    rows = [{"id": name, "rounds": r, "samples": s, "leave": leave} for name, r, s, leave in given]
    return json.dumps({"contracts": rows, "why": why})
