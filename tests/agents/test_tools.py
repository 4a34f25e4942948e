"""Files that come by a tool call, and the question whether an endpoint knows tools at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from metainfer.agents.answer import WRITE_FILE, Answer, read_answer, said
from metainfer.agents.budget import Limits
from metainfer.agents.client import ChatClient, Endpoint, EndpointError
from metainfer.agents.messages import ToolCall
from metainfer.agents.probe import Capabilities, probe
from metainfer.agents.replies import ReplyStore
from metainfer.agents.transcript import Transcript
from metainfer.ckb.models import UnitInterface
from tests.agents.conftest import Desk, question
from tests.agents.scripted_endpoint import Act, Writer, begin, chunk, event, fails, refuses_field, says, scripted, send

UNIT = UnitInterface(name="double", signature="def double(x: int) -> int: ...", shapes={})
GOOD = "def double(x: int) -> int:\n    return 2 * x\n"
ASKED = question(tools=(WRITE_FILE,))


def calls(*made: tuple[str, str], text: str = "", finish: str = "tool_calls", piece: int = 7) -> Act:
    """Stream tool calls, their arguments in pieces, as endpoints do."""

    async def act(writer: Writer, _: dict[str, Any]) -> None:
        await begin(writer)
        if text:
            await send(writer, chunk(text))
        for index, (name, arguments) in enumerate(made):
            pieces = [arguments[i : i + piece] for i in range(0, len(arguments), piece)] or [""]
            for number, one in enumerate(pieces):
                function = {"arguments": one} | ({"name": name} if number == 0 else {})
                await send(writer, _with_calls([{"index": index, "function": function}]))
        await send(writer, chunk("", finish))
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()

    return act


def _with_calls(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    made = chunk(None)
    made["choices"][0]["delta"] = {"tool_calls": list(parts)}
    return made


def answer_to(desk: Desk, act: Act) -> Answer:
    with scripted(act) as endpoint:
        [reply] = desk.ask(endpoint.base_url, ASKED, attempts=1)
    assert endpoint.requests[0]["tools"][0]["function"]["name"] == "write_file"
    return read_answer(reply, [UNIT])


def test_a_file_comes_by_a_tool_call(desk: Desk) -> None:
    assert answer_to(desk, calls(("write_file", json.dumps({"code": GOOD})))) == Answer(GOOD, [])


def test_a_file_in_a_code_block_is_as_good(desk: Desk) -> None:
    assert answer_to(desk, says(f"```python\n{GOOD}```")) == Answer(GOOD, [])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([("submit", json.dumps({"code": GOOD}))], "no tool called submit"),
        ([("", "{}")], "no tool called (no name)"),
        ([("write_file", '{"code": "def dou')], "must be a JSON object"),
        ([("write_file", '{"text": "x"}')], "must be a JSON object"),
        ([("write_file", "[1]")], "must be a JSON object"),
        ([("write_file", '{"code": 7}')], "must be a JSON object"),
        ([("write_file", "[" * 50_000)], "must be a JSON object"),
        ([("write_file", json.dumps({"code": GOOD}))] * 2, "called 2 times"),
        ([("write_file", json.dumps({"code": "def double(:"}))], "not Python"),
        ([("write_file", '{"code": "\\ud800"}')], "not Python"),
        ([("write_file", json.dumps({"code": "def triple(x): ..."}))], "double is not defined"),
    ],
    ids=[
        "a wrong name", "no name", "half the JSON", "another field", "a list", "a number", "deep nesting", "two calls",
        "no Python", "half a character", "another unit",
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_call_is_told(desk: Desk, made: list[tuple[str, str]], words: str) -> None:
    desk_limit = {"max_tokens": 20_000}
    with scripted(calls(*made, piece=4000)) as endpoint:
        [reply] = desk.ask(endpoint.base_url, ASKED.model_copy(update=desk_limit), attempts=1)
    answer = read_answer(reply, [UNIT])
    assert words in answer.complaints[0]


def test_a_call_without_end_is_cut_off(desk: Desk) -> None:
    flood = calls(("write_file", "x" * 200_000), piece=4000)
    with scripted(flood) as endpoint, pytest.raises(EndpointError, match="more than the 100 tokens"):
        desk.ask(endpoint.base_url, ASKED, attempts=1)


def test_a_call_that_breaks_off_is_made_again(desk: Desk) -> None:
    async def half(writer: Writer, _: dict[str, Any]) -> None:
        await begin(writer)
        writer.write(event(_with_calls([{"index": 0, "function": {"name": "write_file", "arguments": '{"co'}}])))
        await writer.drain()

    with scripted(half, calls(("write_file", json.dumps({"code": GOOD})))) as endpoint:
        [reply] = desk.ask(endpoint.base_url, ASKED)
    assert read_answer(reply, [UNIT]).code == GOOD
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("field", ["tools", "tool_choice"])
def test_an_endpoint_without_tools_gets_the_question_without_them(desk: Desk, field: str) -> None:
    with scripted(refuses_field(field, says(f"```python\n{GOOD}```"))) as endpoint:
        [reply] = desk.ask(endpoint.base_url, ASKED)
    assert read_answer(reply, [UNIT]).code == GOOD
    assert field not in endpoint.requests[-1]


def test_in_the_next_round_a_call_reads_like_a_block() -> None:
    given = {"finish_reason": "tool_calls", "usage": {"prompt_tokens": 1, "completion_tokens": 1}, "model": "m"}
    from metainfer.agents.messages import Reply

    call = ToolCall(name="write_file", arguments=json.dumps({"code": GOOD}))
    assert said(Reply(text="", calls=(call,), **given)) == f"```python\n{GOOD}```"
    assert said(Reply(text="Hm.", **given)) == "Hm."
    assert said(Reply(text="", calls=(ToolCall(name="x", arguments="{"),), **given)) == "(nothing)"


def test_a_request_without_tools_is_the_same_question_as_before_there_were_any() -> None:
    assert question().digest != ASKED.digest
    assert "tools" not in question().model_dump_json(exclude={"tools"})
    assert question().digest == question(tools=()).digest


def find_out(
    desk: Desk, *acts: Act, models: Sequence[str] = ("scripted",), **wanted: bool
) -> tuple[Capabilities, set[str]]:
    async def run() -> tuple[Capabilities, set[str]]:
        client = ChatClient(
            Endpoint(endpoint.base_url, "scripted", attempts=1),
            ledger=desk.ledger(),
            replies=ReplyStore(desk.folder / "replies"),
            transcript=Transcript(desk.folder / "transcript.jsonl", []),
        )
        async with client:
            found = await probe(client, "scripted", **({"tools": True, "schema": True} | wanted))
            return found, client.dialect.without

    with scripted(*acts, models=models, answers_probes=False) as endpoint:
        return asyncio.run(run())


def test_an_endpoint_that_can_do_all_is_asked_for_all(desk: Desk) -> None:
    found, without = find_out(desk, calls(("report", '{"number": 7}')), says('{"number": 7}'))
    assert (found.tools, found.schema, without) == (True, True, set())
    assert desk.ledger().spent().call == 2


@pytest.mark.parametrize(
    "act",
    [says("I would call report(7)."), calls(("other", '{"number": 7}')), calls(("report", "{")), fails(422)],
    ids=["prose", "a wrong tool", "no JSON", "refused"],
)
def test_an_endpoint_that_only_says_it_knows_tools_is_not_asked_for_them(desk: Desk, act: Act) -> None:
    found, without = find_out(desk, act, schema=False)
    assert (found.tools, found.schema, without) == (False, None, {"tools"})


def test_a_schema_that_is_not_kept_to_goes_into_the_prompt(desk: Desk) -> None:
    found, without = find_out(desk, says("Seven."), tools=False)
    assert (found.tools, found.schema, without) == (None, False, {"response_format"})


def test_without_budget_nothing_is_found_out_and_nothing_breaks(desk: Desk) -> None:
    desk.limits = Limits(tokens=1)
    found, without = find_out(desk, says("x"))
    assert (found.tools, found.schema, without) == (None, None, set())


def test_a_model_that_is_not_served_is_noticed_before_anything_is_asked(desk: Desk) -> None:
    with pytest.raises(EndpointError, match="does not serve 'scripted', but other"):
        find_out(desk, says("x"), models=("other",))
    assert desk.ledger().spent().call == 0


def test_an_endpoint_too_busy_to_list_its_models_is_asked_all_the_same(desk: Desk) -> None:
    async def look(url: str) -> dict[str, int | None]:
        async with desk.client(url, connect_s=0.3) as client:
            return await client.list_models()

    with scripted(says("x")) as endpoint:
        assert asyncio.run(look(endpoint.base_url)) == {"scripted": None}
        endpoint.listing_s = 5.0
        assert asyncio.run(look(endpoint.base_url)) == {}
    with pytest.raises(EndpointError, match="Connection error"):
        asyncio.run(look("http://127.0.0.1:9/v1"))
