"""An OpenAI-compatible endpoint on a loopback port that does what a script says, well or badly.

It is a real HTTP server down to the bytes, so that the client under test is the whole client.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Writer = asyncio.StreamWriter
Act = Callable[[Writer, dict[str, Any]], Awaitable[None]]
"""Answers one chat request: gets the connection and the request's body."""

PROMPT_TOKENS, TOKENS_PER_PIECE = 11, 1


@dataclass
class ScriptedEndpoint:
    """The running endpoint. Acts are taken in order, one per chat request; the last one goes on for ever."""

    acts: list[Act]
    base_url: str = ""
    models: Sequence[str] = ("scripted",)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers_probes: bool = True
    """What the client asks at its start is answered well, and takes no act."""
    listing_s: float = 0.0
    """How long it takes to list the models."""
    listing: Act | None = None
    """Lists the models instead."""
    open_now: int = 0
    open_most: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            if lines[0].startswith("GET"):
                await asyncio.sleep(self.listing_s)
                listing = {"object": "list", "data": [{"id": m, "object": "model", "created": 0, "owned_by": "x"}
                                                     for m in self.models]}  # fmt: skip
                await (self.listing or whole(200, json.dumps(listing)))(writer, {})
            else:
                await self._chat(writer, fields, json.loads(body))
        with suppress(ConnectionError):
            writer.close()

    async def _chat(self, writer: Writer, fields: dict[str, str], body: dict[str, Any]) -> None:
        if self.answers_probes and body["messages"][-1]["content"] == "Answer with the number 7.":
            await says('{"number": 7}')(writer, body)
            return
        act = self.acts[min(len(self.requests), len(self.acts) - 1)]
        self.requests.append(body)
        self.headers.append(fields)
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            await act(writer, body)
        finally:
            self.open_now -= 1


@contextmanager
def scripted(
    *acts: Act, models: Sequence[str] = ("scripted",), answers_probes: bool = True
) -> Iterator[ScriptedEndpoint]:
    """Run an endpoint in a thread of its own."""
    endpoint = ScriptedEndpoint(list(acts), models=models, answers_probes=answers_probes)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(endpoint.serve, "127.0.0.1", 0, limit=1 << 24))
    endpoint.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def whole(status: int, body: str, **headers: str) -> Act:
    """A plain answer that is no stream."""

    async def act(writer: Writer, _: dict[str, Any]) -> None:
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body.encode()))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{head}Connection: close\r\n\r\n{body}".encode())
        await writer.drain()

    return act


def fails(status: int, message: str = "no", **headers: str) -> Act:
    """An error in the API's format."""
    error = {"error": {"message": message, "type": "x", "param": None, "code": None}}
    return whole(status, json.dumps(error), **headers)


def refuses_field(name: str, then: Act) -> Act:
    """400 for a request that holds a field, as endpoints do that do not know it."""

    async def act(writer: Writer, body: dict[str, Any]) -> None:
        await (fails(400, f"Unsupported parameter: '{name}'.") if name in body else then)(writer, body)

    return act


def says(text: str, *, usage: bool = True, finish: str | None = "stop", piece: int = 40, pause_s: float = 0.0) -> Act:
    """Stream `text`. Without `finish` the stream just ends."""

    async def act(writer: Writer, body: dict[str, Any]) -> None:
        await begin(writer)
        pieces = [text[i : i + piece] for i in range(0, len(text), piece)]
        for one in pieces:
            await send(writer, chunk(one))
            if pause_s:
                await asyncio.sleep(pause_s)
        if finish:
            await send(writer, chunk("", finish))
            if usage and (body.get("stream_options") or {}).get("include_usage"):
                counts = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS_PER_PIECE * len(pieces)}
                counts["total_tokens"] = sum(counts.values())
                await send(writer, chunk(None) | {"choices": [], "usage": counts})
            writer.write(b"data: [DONE]\n\n")
        await writer.drain()

    return act


def answers(give: Callable[[dict[str, Any]], str]) -> Act:
    """Stream what `give` makes of the request's body."""

    async def act(writer: Writer, body: dict[str, Any]) -> None:
        await says(give(body))(writer, body)

    return act


def streams(*lines: bytes, hold_s: float = 0.0, reset: bool = False) -> Act:
    """Begin a stream and send these bytes; then hold the connection, end it, or break it."""

    async def act(writer: Writer, _: dict[str, Any]) -> None:
        await begin(writer)
        for line in lines:
            writer.write(line)
        await writer.drain()
        await asyncio.sleep(hold_s)
        if reset:
            writer.transport.abort()

    return act


def endless(piece: bytes, pause_s: float = 0.0) -> Act:
    """Begin a stream and send `piece` again and again until nobody reads it any more."""

    async def act(writer: Writer, _: dict[str, Any]) -> None:
        await begin(writer)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return act


def silent(seconds: float) -> Act:
    """No byte at all for a while, then the end."""

    async def act(writer: Writer, _: dict[str, Any]) -> None:
        await asyncio.sleep(seconds)

    return act


async def begin(writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    await writer.drain()


async def send(writer: Writer, payload: dict[str, Any]) -> None:
    writer.write(event(payload))
    await writer.drain()


def event(payload: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


def chunk(text: str | None, finish: str | None = None) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "scripted-1", "choices": [choice]}
