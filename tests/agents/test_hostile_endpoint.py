"""Endpoints that send what no honest one does: each ends as an answer or a plain error, and what it costs is booked."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from metainfer.agents import transport
from metainfer.agents.answer import read_answer, said
from metainfer.agents.client import EndpointError, api_key
from metainfer.agents.messages import Message
from metainfer.ckb.models import UnitInterface
from metainfer.errors import InputError
from tests.agents.conftest import Desk, question
from tests.agents.scripted_endpoint import Act, chunk, endless, event, says, scripted, streams, whole

HALF = "\ud800"
"""Half of a character, as JSON can spell it and nothing that is encoded can hold it."""


def part(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> bytes:
    made = chunk(None, finish) | fields
    made["choices"][0]["delta"] = delta
    return event(made)


def call(**function: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"name": "write_file", "arguments": "{}"} | function}]}


def one_event(data: str) -> Act:
    return streams(f"data: {data}\n\n".encode())


HOSTILE: dict[str, Act] = {
    "half a character in an error": whole(400, '{"error": {"message": "bad \\ud800 \\u001b[2J"}}'),
    "half a character in an error that may pass": whole(500, '{"error": {"message": "bad \\ud800"}}'),
    "half a character in an error event": one_event('{"error": {"message": "bad \\ud800"}}'),
    "half a character in the reason of its end": streams(part({"content": "x"}, HALF)),
    "lists without end": one_event("[" * 200_000),
    "objects without end": one_event('{"choices": ' + '{"a":' * 100_000),
    "arguments that are no text": streams(part(call(arguments={"code": "x"}), "stop")),
    "a name that is no text": streams(part(call(name=["write_file"]), "stop")),
    "an answer that is no text": streams(part({"content": ["x"]}, "stop")),
    "a model that is no text": streams(part({"content": "x"}, "stop", model={"a": 1})),
}


@pytest.mark.parametrize("act", HOSTILE.values(), ids=HOSTILE)
def test_what_no_endpoint_may_send_is_told_in_one_line_and_settled(desk: Desk, act: Act) -> None:
    with scripted(act) as endpoint, pytest.raises(EndpointError) as caught:
        desk.ask(endpoint.base_url, question(), attempts=2)
    str(caught.value).encode()
    assert len(str(caught.value)) < 600
    assert [bool(turn.error) for turn in desk.turns] == [True]
    assert {entry.event for entry in desk.ledger()._calls.values()} == {"settled"}


def test_half_a_character_in_an_answer_becomes_the_sign_for_it(desk: Desk) -> None:
    act = streams(part({"content": f"a{HALF}b \ud83d"}), part({"content": "\ude00"}, "stop", model=f"m{HALF}"))
    with scripted(act) as endpoint:
        [reply] = desk.ask(endpoint.base_url, question())
        [kept] = desk.ask(endpoint.base_url, question())
    assert (reply.text, reply.model) == ("a\ufffdb \U0001f600", "m\ufffd")
    assert kept == reply
    assert [turn.reply for turn in desk.turns] == [reply, reply]


def test_half_a_character_in_a_file_can_be_said_again(desk: Desk) -> None:
    unit = UnitInterface(name="double", signature="def double(x: int) -> int: ...", shapes={})
    act = streams(part(call(arguments='{"code": "x = \'\\ud800\'"}'), "stop"))
    with scripted(act) as endpoint:
        [reply] = desk.ask(endpoint.base_url, question())
    assert read_answer(reply, [unit]).complaints == ["double is not defined at the top of the file"]
    Message(role="assistant", content=said(reply)).content.encode()


def test_a_key_that_the_endpoint_says_again_is_in_no_answer(desk: Desk) -> None:
    """Its answers become files that are published; what is replayed has to be what was used."""
    code = '{"code": "key = \'top-secret-key\'\\nsk-proj-abcdefghijklmnop1234"}'
    act = streams(part({"content": "it is top-"}), part({"content": "secret-key"} | call(arguments=code), "stop"))
    with scripted(act) as endpoint:
        [reply] = desk.ask(endpoint.base_url, question())
    assert reply.text == "it is [redacted]"
    assert reply.calls[0].arguments == '{"code": "key = \'[redacted]\'\\n[redacted]"}'
    assert [turn.reply for turn in desk.turns] == [reply]
    for file in desk.folder.rglob("*.json*"):
        assert b"top-secret" not in file.read_bytes(), file


@pytest.mark.parametrize("bad", ["se\ncret", "se\x7fcret", "\u0441ecret"])
def test_a_key_that_no_request_can_carry_is_told_at_once(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("METAINFER_API_KEY", " good-key\r\n")
    assert api_key() == "good-key"
    monkeypatch.setenv("METAINFER_API_KEY", bad)
    with pytest.raises(InputError, match="METAINFER_API_KEY") as caught:
        api_key()
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 503])
def test_a_password_in_the_address_is_in_no_message_and_no_file(desk: Desk, status: int) -> None:
    with scripted(whole(status, '{"error": {"message": "hunter-22 again"}}')) as endpoint:
        url = endpoint.base_url.replace("http://", "http://me:hunter-22@")
        with pytest.raises(EndpointError) as caught:
            desk.ask(url, question(), attempts=1)
    assert "hunter" not in str(caught.value)
    assert (endpoint.base_url in str(caught.value)) == (status == 503)
    for file in desk.folder.rglob("*.json*"):
        assert b"hunter" not in file.read_bytes(), file


LISTINGS: dict[str, Act] = {
    "a word": whole(200, '{"data": "abc"}'),
    "nothing in a list": whole(200, '{"data": [null]}'),
    "a list": whole(200, "[]"),
    "a number": whole(200, "3"),
    "a web page": whole(200, "<html>", Content_Type="text/html"),
    "half of it": whole(200, '{"data": ['),
    "lists without end": whole(200, "[" * 200_000),
    "a name that is no text": whole(200, '{"data": [{"id": {"a": 1}}]}'),
    "no name": whole(200, '{"data": [{}]}'),
    "a byte now and then": endless(b" ", pause_s=0.05),
}


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)
def test_what_is_no_list_of_models_is_as_good_as_none(desk: Desk, listing: Act) -> None:
    async def look(url: str) -> dict[str, int | None]:
        async with desk.client(url, connect_s=0.3) as client:
            return await client.list_models()

    began = time.monotonic()
    with scripted(says("x")) as endpoint:
        endpoint.listing = listing
        assert asyncio.run(look(endpoint.base_url)) == {}
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("status", [200, 500])
def test_a_line_without_end_does_not_fill_the_memory(desk: Desk, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(transport, "MAX_BYTES", 1 << 20)
    act = endless(b"x" * 65_536) if status == 200 else whole(status, "x" * (2 << 20))
    with scripted(act) as endpoint, pytest.raises(EndpointError, match="more than 1,048,576 bytes"):
        desk.ask(endpoint.base_url, question(), attempts=1, idle_s=4.0)


def test_what_unpacks_to_a_thousand_times_its_size_is_not_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_PACKED_BYTES", 1000)
    act = whole(200, "x" * 2000, Content_Type="text/event-stream", Content_Encoding="deflate")
    with scripted(act) as endpoint, pytest.raises(EndpointError, match="more than 1,000 bytes"):
        desk.ask(endpoint.base_url, question(), attempts=1)
    assert endpoint.headers[0]["accept-encoding"] == "identity"
