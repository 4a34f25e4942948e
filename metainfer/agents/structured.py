"""Answers that are data: JSON that fits a model of ours, one question for repair, and no answer if that fails too.

Roles beside the implementer answer in this form. Whatever goes wrong is told and never raised: an engine does not
depend on any of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from metainfer.agents.budget import BudgetError, Purpose
from metainfer.agents.client import EndpointError
from metainfer.agents.hygiene import as_data
from metainfer.agents.messages import ChatRequest, Message, Reply
from metainfer.agents.respondent import Respondent
from metainfer.agents.templates import render

_FENCED = re.compile(r"^ {0,3}```\w*\s*?\n(.*?)^ {0,3}```", re.DOTALL | re.MULTILINE)
_MAX_COMPLAINTS = 5
_MAX_COMPLAINT_CHARACTERS = 300
_Answer = TypeVar("_Answer", bound="AnswerModel")


class AnswerModel(BaseModel):
    """What a model is to answer. Plain types, no defaults and no bounds, so that every endpoint can be held to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Asker:
    """A model that can be asked, and how long its answers may be."""

    client: Respondent
    model: str
    max_tokens: int


@dataclass(frozen=True)
class Structured(Generic[_Answer]):
    """The answer, or why there is none."""

    value: _Answer | None
    skipped: str = ""


def no_complaint(_: Any) -> str:
    """Whatever fits the model is fine."""
    return ""


async def ask_for(
    answer: type[_Answer],
    asker: Asker,
    messages: Sequence[Message],
    purpose: Purpose,
    complain: Callable[[_Answer], str] = no_complaint,
) -> Structured[_Answer]:
    """Ask, and once more with what is wrong. `complain`: what beyond its form is wrong with an answer, if anything.

    The repair is the round after `purpose.round`. Raises StoppedError alone: a person wants no call to be made.
    """
    schema = answer.model_json_schema()
    said, wrong = tuple(messages), ""
    for number in (purpose.round, purpose.round + 1):
        request = ChatRequest(
            model=asker.model, messages=said, max_tokens=asker.max_tokens, seed=0, answer_schema=schema
        )
        try:
            reply = await asker.client.ask(request, purpose.model_copy(update={"round": number}))
        except (BudgetError, EndpointError) as error:
            return Structured(None, str(error))
        value, wrong = _read(reply, answer)
        wrong = wrong or (complain(value) if value is not None else "")
        if value is not None and not wrong:
            return Structured(value)
        repair = render("answer.repair.md.j2", complaint=wrong)
        said = (*messages, Message(role="assistant", content=reply.text), Message(role="user", content=repair))
    return Structured(None, f"no answer that can be used: {wrong}")


def _read(reply: Reply, answer: type[_Answer]) -> tuple[_Answer | None, str]:
    if reply.is_cut_off:
        return None, "the answer was cut off at its limit before it ended; be brief"
    wrong = ""
    for text in _candidates(reply.text.rpartition("</think>")[2]):
        try:
            return answer.model_validate_json(text), ""
        except (ValidationError, ValueError, RecursionError) as error:
            wrong = wrong or _in_words(error)
    return None, wrong


def _candidates(text: str) -> Iterator[str]:
    """The whole text, what is fenced in it, and what stands between its first and last brace."""
    begin, end = text.find("{"), text.rfind("}")
    if not 0 <= begin < end:
        yield text
        return
    yield text[begin : end + 1]
    for match in _FENCED.finditer(text):
        yield match[1]


def _in_words(error: Exception) -> str:
    """What is wrong, in a few short lines. The names of unknown fields are the model's own: they are data."""
    if not isinstance(error, ValidationError):
        return str(error)[:_MAX_COMPLAINT_CHARACTERS]
    problems = error.errors(include_url=False, include_input=False, include_context=False)[:_MAX_COMPLAINTS]
    lines = [": ".join(part for part in (".".join(map(str, p["loc"])), p["msg"]) if part) for p in problems]
    return as_data("; ".join(" ".join(line.split())[:_MAX_COMPLAINT_CHARACTERS] for line in lines))
