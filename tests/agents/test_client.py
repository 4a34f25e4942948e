"""The client on endpoints that work, and on each way in which they do not."""

from __future__ import annotations

import json

import pytest

from metainfer.agents.budget import BudgetError, Limits, StoppedError
from metainfer.agents.client import EndpointError
from metainfer.errors import InputError
from tests.agents.conftest import Desk, question
from tests.agents.scripted_endpoint import (
    PROMPT_TOKENS,
    Act,
    chunk,
    event,
    fails,
    refuses_field,
    says,
    scripted,
    silent,
    streams,
    whole,
)


def test_an_answer_comes_whole_with_what_it_cost(desk: Desk) -> None:
    with scripted(says("x" * 100, piece=10)) as endpoint:
        [reply] = desk.ask(endpoint.base_url, question())
    assert (reply.text, reply.finish_reason, reply.model) == ("x" * 100, "stop", "scripted-1")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.estimated) == (11, 10, False)
    spent = desk.ledger().spent()
    assert (spent.usd, spent.tokens, spent.call) == (PROMPT_TOKENS + 2 * 10, 21, 1)
    assert endpoint.requests[0]["messages"] == [{"role": "user", "content": "hello"}]


def test_usage_that_is_not_told_is_counted_and_marked(desk: Desk) -> None:
    with scripted(says("x" * 100, usage=False)) as endpoint:
        [reply] = desk.ask(endpoint.base_url, question())
    assert reply.usage.estimated
    assert reply.usage.completion_tokens == 34  # a third of the bytes, rounded up
    assert desk.ledger().spent().tokens == reply.usage.total


def test_an_answer_cut_off_by_its_limit_says_so(desk: Desk) -> None:
    with scripted(says("half of", finish="length")) as endpoint:
        [reply] = desk.ask(endpoint.base_url, question())
    assert reply.is_cut_off


def test_the_same_question_is_paid_for_once(desk: Desk) -> None:
    with scripted(says("first"), says("second")) as endpoint:
        replies = [desk.ask(endpoint.base_url, question())[0] for _ in range(3)]
    assert [reply.text for reply in replies] == ["first"] * 3
    assert len(endpoint.requests) == 1
    assert [turn.from_store for turn in desk.turns] == [False, True, True]


def test_another_sample_is_another_question(desk: Desk) -> None:
    with scripted(says("first"), says("second")) as endpoint:
        replies = desk.ask(endpoint.base_url, question(), question(sample=1), concurrency=1)
    assert [reply.text for reply in replies] == ["first", "second"]


def test_no_more_calls_run_at_once_than_allowed(desk: Desk) -> None:
    with scripted(says("hi", pause_s=0.05)) as endpoint:
        desk.ask(endpoint.base_url, *(question(sample=i) for i in range(8)), concurrency=3)
    assert endpoint.open_most == 3


@pytest.mark.parametrize("name", ["stream_options", "seed", "temperature"])
def test_a_field_that_the_endpoint_does_not_know_is_left_out(desk: Desk, name: str) -> None:
    with scripted(refuses_field(name, says("fine"))) as endpoint:
        [reply] = desk.ask(endpoint.base_url, question(seed=1))
    assert reply.text == "fine"
    assert [name in request for request in endpoint.requests] == [True, False]


def test_max_tokens_gets_its_newer_name_where_it_is_refused(desk: Desk) -> None:
    with scripted(refuses_field("max_tokens", says("fine"))) as endpoint:
        desk.ask(endpoint.base_url, question())
    assert endpoint.requests[-1]["max_completion_tokens"] == 100


def test_a_schema_goes_into_the_prompt_where_it_cannot_be_enforced(desk: Desk) -> None:
    schema = {"type": "object", "properties": {"order": {"type": "array"}}}
    with scripted(refuses_field("response_format", says('{"order": []}'))) as endpoint:
        desk.ask(endpoint.base_url, question(answer_schema=schema))
    assert endpoint.requests[0]["response_format"]["json_schema"]["schema"] == schema
    assert json.dumps(schema) in endpoint.requests[1]["messages"][-1]["content"]


BREAKS: dict[str, Act] = {
    "the connection closes before a byte": silent(0),
    "no byte comes": silent(30),
    "the stream ends in the middle": says("half", finish=None),
    "the connection breaks in the middle": streams(event(chunk("half")), reset=True),
    "silence in the middle": streams(event(chunk("half")), hold_s=30),
    "an event is no JSON": streams(b"data: {half\n\n"),
    "an event is a list": streams(b"data: [1]\n\n"),
    "an event is invalid UTF-8": streams(b"data: \xff\xfe\n\n"),
    "choices of the wrong kind": streams(event(chunk("x") | {"choices": "no"})),
    "an error event": streams(event(chunk("half")), event({"error": {"message": "overloaded", "type": "x"}})),
    "nothing but the end": streams(b"data: [DONE]\n\n"),
    "a web page": whole(200, "<html>Please log in</html>", Content_Type="text/html"),
    "an answer that is not streamed": whole(200, json.dumps({"choices": [{"message": {"content": "hi"}}]})),
    "429": fails(429, "slow down"),
    "429 with a time to wait": fails(429, "slow down", Retry_After="0"),
    "429 with a date to wait for": fails(429, "slow down", Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"),
    "500": fails(500),
    "502 with a web page": whole(502, "<html>Bad Gateway</html>", Content_Type="text/html"),
    "503": fails(503),
    "408": fails(408),
}


@pytest.mark.parametrize("act", BREAKS.values(), ids=BREAKS)
def test_what_breaks_once_is_tried_again(desk: Desk, act: Act) -> None:
    with scripted(act, says("fine")) as endpoint:
        [reply] = desk.ask(endpoint.base_url, question(), idle_s=0.3)
    assert reply.text == "fine"
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("act", BREAKS.values(), ids=BREAKS)
def test_what_breaks_each_time_ends_in_one_line_that_names_the_endpoint(desk: Desk, act: Act) -> None:
    with scripted(act) as endpoint, pytest.raises(EndpointError) as caught:
        desk.ask(endpoint.base_url, question(), idle_s=0.5, attempts=2)
    assert str(caught.value).startswith(endpoint.base_url)
    assert "\n" not in str(caught.value)
    assert len(endpoint.requests) == 2
    assert [bool(turn.error) for turn in desk.turns] == [True]
    assert {entry.event for entry in desk.ledger()._calls.values()} == {"settled"}


FINAL: dict[str, tuple[Act, str]] = {
    "a wrong key": (fails(401), "is the API key right"),
    "a model that is not there": (fails(404), "served there"),
    "a request that is refused": (fails(400, "context length exceeded"), "context length exceeded"),
    "a flood": (says("x" * 200_000, piece=4000), "more than the 100 tokens"),
    "a content filter": (says("x", finish="content_filter"), "content_filter"),
    "a tool call that nobody offered": (says("", finish="tool_calls"), "tool_calls"),
}


@pytest.mark.parametrize(("act", "words"), FINAL.values(), ids=FINAL)
def test_what_would_fail_again_is_not_tried_again(desk: Desk, act: Act, words: str) -> None:
    with scripted(act) as endpoint, pytest.raises(EndpointError, match=words):
        desk.ask(endpoint.base_url, question())
    assert len(endpoint.requests) == 1


def test_a_refused_call_costs_nothing_and_a_broken_one_what_came(desk: Desk) -> None:
    with scripted(fails(503), says("x" * 30, finish=None), says("fine")) as endpoint:
        desk.ask(endpoint.base_url, question())
    tokens = [entry.tokens for entry in desk.ledger()._calls.values()]
    assert tokens[0] == 0
    assert tokens[1] == question().prompt_tokens + 10
    assert tokens[2] == PROMPT_TOKENS + 1


def test_an_endpoint_that_is_not_there_is_named(desk: Desk) -> None:
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1:9/v1: cannot be reached"):
        desk.ask("http://127.0.0.1:9/v1", question(), attempts=2)


def test_an_address_that_is_no_url_is_refused(desk: Desk) -> None:
    with pytest.raises(InputError, match="no URL"):
        desk.ask("localhost", question())


def test_the_key_is_sent_and_never_written(desk: Desk) -> None:
    refusal = fails(401, "Incorrect API key provided: top-secret-key")
    with scripted(refusal) as endpoint, pytest.raises(EndpointError) as caught:
        desk.ask(endpoint.base_url, question("my key is top-secret-key"))
    assert endpoint.headers[0]["authorization"] == "bearer top-secret-key"
    assert "top-secret" not in str(caught.value)
    for file in desk.folder.rglob("*.json*"):
        assert b"top-secret" not in file.read_bytes(), file


def test_a_call_that_could_go_beyond_the_budget_is_not_made(desk: Desk) -> None:
    desk.limits = Limits(tokens=question().prompt_tokens + 99)
    with scripted(says("x")) as endpoint, pytest.raises(BudgetError, match="tokens"):
        desk.ask(endpoint.base_url, question())
    assert endpoint.requests == []


def test_a_storm_of_retries_is_cut_off_by_the_budget(desk: Desk) -> None:
    desk.limits = Limits(calls=4)
    with scripted(fails(429)) as endpoint, pytest.raises(BudgetError, match="calls"):
        desk.ask(endpoint.base_url, question(), attempts=50, first_wait_s=0.001)
    assert len(endpoint.requests) == 4


def test_wall_time_ends_a_call_that_is_under_way(desk: Desk) -> None:
    desk.limits = Limits(wall_s=0.5)
    with scripted(says("x" * 1000, piece=1, pause_s=0.02)) as endpoint, pytest.raises(BudgetError, match="wall time"):
        desk.ask(endpoint.base_url, question())


def test_the_stop_file_stops_before_the_next_call(desk: Desk) -> None:
    (desk.folder / "STOP").touch()
    with scripted(says("x")) as endpoint, pytest.raises(StoppedError, match="remove it"):
        desk.ask(endpoint.base_url, question())
    assert endpoint.requests == []
