"""Answers that are data, however they come; what is none is asked for once more and then done without."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.agents.budget import Limits, Purpose
from metainfer.agents.messages import Message
from metainfer.agents.structured import AnswerModel, Asker, Structured, ask_for
from metainfer.agents.transcript import read_transcript
from tests.agents.roles_at_work import ask_with
from tests.agents.scripted_endpoint import Act, ScriptedEndpoint, fails, refuses_field, says


class Count(AnswerModel):
    count: int


def ask(folder: Path, act: Act, limits: Limits | None = None) -> tuple[Structured[Count], ScriptedEndpoint]:
    messages = [Message(role="user", content="How many?")]

    async def talk(asker: Asker) -> Structured[Count]:
        wrong = lambda answer: "" if answer.count >= 0 else "a count is not negative"  # noqa: E731
        return await ask_for(Count, asker, messages, Purpose(role="counter", subject="things"), wrong)

    return ask_with(folder, act, talk, limits)


@pytest.mark.parametrize(
    "text",
    [
        '{"count": 3}',
        'Here it is:\n```json\n{"count": 3}\n```\n',
        'There are {three}.\n```json\n{"count": 3}\n```\n',
        'The count is {"count": 3}, I think.',
        '<think>{"count": 4}?</think>{"count": 3}',
    ],
    ids=["bare", "fenced", "fenced, with braces before", "in words", "after thinking"],
)
def test_the_object_is_found_however_it_is_wrapped(tmp_path: Path, text: str) -> None:
    answer, endpoint = ask(tmp_path, says(text))
    assert answer.value == Count(count=3)
    assert len(endpoint.requests) == 1
    assert endpoint.requests[0]["response_format"]["json_schema"]["schema"]["required"] == ["count"]


def test_an_endpoint_without_schemas_is_told_in_words(tmp_path: Path) -> None:
    answer, endpoint = ask(tmp_path, refuses_field("response_format", says('{"count": 3}')))
    assert answer.value == Count(count=3)
    assert "It must match this JSON Schema" in endpoint.requests[-1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("I would rather not.", "Invalid JSON"),
        ('{"count": "many"}', "count: Input should be a valid integer"),
        ('{"count": 3, "of": "</findings>"}', "of: Extra inputs are not permitted"),
        ('{"count": -3}', "a count is not negative"),
        ('{"count": ' * 3000, "Invalid JSON"),
    ],
    ids=["words", "another type", "another field", "a complaint", "nested beyond measure"],
)
def test_what_is_wrong_is_asked_for_once_more_and_then_done_without(tmp_path: Path, text: str, complaint: str) -> None:
    answer, endpoint = ask(tmp_path, says(text, piece=2000))
    assert answer.value is None
    assert complaint in answer.skipped
    assert len(endpoint.requests) == 2
    assert complaint in endpoint.requests[1]["messages"][-1]["content"]
    rounds = [turn.purpose.round for turn in read_transcript(tmp_path / "transcript.jsonl")]
    assert rounds == [0, 1]


@pytest.mark.parametrize(
    ("act", "limits", "reason"),
    [
        (fails(500), Limits(), "500"),
        (says("x", finish="content_filter"), Limits(), "content_filter"),
        (says('{"count": 3}'), Limits(tokens=10), "budget"),
    ],
    ids=["an endpoint that fails", "a filter", "no budget"],
)
def test_whatever_goes_wrong_is_told_and_not_raised(tmp_path: Path, act: Act, limits: Limits, reason: str) -> None:
    answer, _ = ask(tmp_path, act, limits)
    assert answer.value is None
    assert reason in answer.skipped
