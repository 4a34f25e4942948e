"""An ASGI application behind a real HTTP server on loopback, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOST = "localhost"
"""The one name in all addresses: PyGithub refuses a URL whose host is not the one that it was given."""


@contextmanager
def served(app: App) -> Iterator[str]:
    """Serve `app`; gives its base URL, without a slash at the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    # Taken over by each connection; without it, an answer's body waits 40 ms for its head to be acknowledged.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(app, lifespan="off", log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        time.sleep(0.005)
    try:
        yield f"http://{HOST}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


async def read_body(receive: Receive) -> bytes:
    """The whole of a request's body."""
    pieces = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client went away")
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


async def answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a whole answer."""
    sized = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body})


async def hang_up(receive: Receive) -> None:
    """Break the connection without an answer. ASGI has no word for it, so uvicorn's own transport is asked.

    `receive` must be the one that the server gave to the outermost application.
    """
    receive.__self__.transport.abort()  # type: ignore[attr-defined]
    await gone(receive)


async def gone(receive: Receive) -> None:
    """Wait until the connection is no more."""
    while (await receive())["type"] != "http.disconnect":
        await asyncio.sleep(0)


def header(scope: Scope, name: str) -> str:
    """A request header by its name in lower case; empty when absent."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name.encode()), "")
