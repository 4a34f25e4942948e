"""What goes wrong between a client and a server, put in at a chosen call: a broken line, a limit, a bad gateway."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.github.serving import App, Message, Receive, Scope, Send, answer, gone, hang_up, read_body


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call. `carried_out`: whether the server does what was asked before the answer goes wrong."""

    name: str
    carried_out: bool
    status: int | None = None
    """None: the connection breaks, unless `delay_s` says that the answer is only late."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    delay_s: float = 0.0
    cut: bool = False
    """The true answer ends in its middle."""
    silent: bool = False
    """No answer comes, and the connection stays: the client has to give up."""

    def __str__(self) -> str:
        return self.name


def _said(message: str, **more: Any) -> dict[str, Any]:
    return {"message": message, "documentation_url": "https://docs.github.com/rest", **more}


DROPPED_BEFORE = Fault("dropped before", False)
DROPPED_AFTER = Fault("dropped after", True)
GATEWAY_BEFORE = Fault("502 before", False, 502, body=_said("Server Error"))
GATEWAY_AFTER = Fault("502 after", True, 502, body=_said("Server Error"))
SECONDARY_LIMIT = Fault(
    "403 secondary limit",
    False,
    403,
    {"Retry-After": "1"},
    _said("You have exceeded a secondary rate limit. Please wait a few minutes before you try again."),
)
TOO_MANY = Fault("429", False, 429, {"Retry-After": "1"}, _said("Too many requests"))
UNPROCESSABLE = Fault(
    "422", False, 422, body=_said("Validation Failed", errors=[{"resource": "Any", "code": "custom", "message": "no"}])
)
SLOW = Fault("slow", True, delay_s=0.3)
CUT_SHORT = Fault("cut short", True, cut=True)
SILENT_BEFORE = Fault("silent before", False, silent=True)
SILENT_AFTER = Fault("silent after", True, silent=True)
FAULTS = (
    DROPPED_BEFORE,
    DROPPED_AFTER,
    GATEWAY_BEFORE,
    GATEWAY_AFTER,
    SECONDARY_LIMIT,
    TOO_MANY,
    UNPROCESSABLE,
    SLOW,
)


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it came in: the path without the query."""

    method: str
    path: str
    query: str = ""

    @property
    def reads(self) -> bool:
        """Whether it changes nothing: by its method, and for Git by what is asked."""
        return self.method in ("GET", "HEAD") or self.path.endswith("/git-upload-pack")

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(slots=True)
class _Planned:
    fault: Fault
    method: str
    path: re.Pattern[str]
    nth: int
    seen: int = 0


@dataclass(slots=True)
class _Awaited:
    act: Callable[[], object]
    method: str
    path: re.Pattern[str]
    nth: int
    seen: int = 0


class Faults:
    """An ASGI application around another one. Nothing happens but what was planned; every call is kept."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.calls: list[Call] = []
        self.struck: list[Call] = []
        self._planned: list[_Planned] = []
        self._before: list[_Awaited] = []

    def plan(self, fault: Fault, method: str, path: str, nth: int = 1) -> None:
        """Let `fault` happen to the `nth` call from now on whose method is `method` and whose path holds `path`.

        `path` is a regular expression, `method` may be "*".
        """
        self._planned.append(_Planned(fault, method, re.compile(path), nth))

    def before(self, method: str, path: str, act: Callable[[], object], nth: int = 1) -> None:
        """Do something once, in between: right before the `nth` such call is let through. It may call the server."""
        self._before.append(_Awaited(act, method, re.compile(path), nth))

    def clear(self) -> None:
        """Forget plans and calls."""
        self.calls.clear()
        self.struck.clear()
        self._planned.clear()
        self._before.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        call = Call(scope["method"], scope["path"], scope["query_string"].decode("latin-1"))
        self.calls.append(call)
        for awaited in [one for one in self._before if one.method in ("*", call.method) and one.path.search(call.path)]:
            awaited.seen += 1
            if awaited.seen == awaited.nth:
                self._before.remove(awaited)
                await asyncio.get_running_loop().run_in_executor(None, awaited.act)
        fault = self._due(call)
        if fault is None:
            await self.app(scope, receive, send)
            return
        self.struck.append(call)
        await self._strike(fault, scope, receive, send)

    def _due(self, call: Call) -> Fault | None:
        due = None
        for planned in self._planned:
            if planned.method in ("*", call.method) and planned.path.search(call.path):
                planned.seen += 1
                if planned.seen == planned.nth:
                    due = planned.fault
        return due

    async def _strike(self, fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(fault.delay_s)
        if fault.delay_s and fault.status is None:
            await self.app(scope, receive, send)
            return
        if fault.cut:
            await self.app(scope, receive, _cut_short(send))
            await hang_up(receive)
            return
        if fault.carried_out:
            await self.app(scope, receive, _into_nothing)
        else:
            await read_body(receive)
        if fault.silent:
            await gone(receive)
            return
        if fault.status is None:
            await hang_up(receive)
            return
        headers = [(name.lower().encode(), value.encode()) for name, value in fault.headers.items()]
        body = json.dumps(fault.body).encode()
        await answer(send, fault.status, [(b"content-type", b"application/json"), *headers], body)


def _cut_short(send: Send) -> Send:
    """Passes an answer on but for the second half of its content."""

    async def passing(message: Message) -> None:
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            message = {**message, "body": body[: len(body) // 2], "more_body": True}
        await send(message)

    return passing


async def _into_nothing(message: Message) -> None:
    """Where an answer goes that is lost on its way."""
