"""What an endpoint can do, found out at the start by asking it: cheaper than finding out in the middle of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.agents.budget import BudgetError, Purpose
from metainfer.agents.client import AnswerError, EndpointError
from metainfer.agents.messages import ChatRequest, Message, Reply, Tool

if TYPE_CHECKING:
    from metainfer.agents.respondent import Answering

_SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
    "additionalProperties": False,
}
_TOOL = Tool(name="report", description="Report a number.", parameters=_SCHEMA)
_MAX_TOKENS = 64
PROBE = "probe"
"""The role of these calls in ledgers and transcripts."""


@dataclass(frozen=True)
class Capabilities:
    """Of one model at one endpoint. None is what was not asked, or could not be for want of budget."""

    model: str
    context_tokens: int | None
    """Prompt and answer together, where the endpoint's list of models says so."""
    tools: bool | None
    schema: bool | None


async def probe(client: Answering, model: str, *, tools: bool, schema: bool) -> Capabilities:
    """Look the model up and try what is wanted of it, by one short question each; both are booked like any other.

    What turns out not to work is not asked for again by this client: files come in code blocks then, schemas go into
    the prompt. Raises EndpointError if the endpoint cannot be used, or lists models and not this one.
    """
    served = await client.list_models()
    if served and model not in served:
        raise EndpointError(f"{client.endpoint.shown_url} does not serve {model!r}, but {', '.join(list(served)[:8])}")
    found = Capabilities(
        model=model,
        context_tokens=served.get(model),
        tools=await _try(client, _question(model, "Call the tool report with the number 7.", tool=True))
        if tools
        else None,
        schema=await _try(client, _question(model, "Answer with the number 7.", tool=False)) if schema else None,
    )
    if found.tools is False:
        client.dialect.without.add("tools")
    if found.schema is False:
        client.dialect.without.add("response_format")
    return found


def _question(model: str, text: str, *, tool: bool) -> ChatRequest:
    return ChatRequest(
        model=model,
        messages=(Message(role="user", content=text),),
        max_tokens=_MAX_TOKENS,
        tools=(_TOOL,) if tool else (),
        answer_schema=None if tool else _SCHEMA,
    )


async def _try(client: Answering, request: ChatRequest) -> bool | None:
    try:
        reply = await client.ask(request, Purpose(role=PROBE, subject="endpoint"))
    except BudgetError:
        return None
    except AnswerError:
        return False
    return _has_number(_of_tool(reply) if request.tools else reply.text)


def _of_tool(reply: Reply) -> str:
    return next((call.arguments for call in reply.calls if call.name == _TOOL.name), "")


def _has_number(text: str) -> bool:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and answer.get("number") == 7
