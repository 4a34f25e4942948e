"""The stub as one server: the REST API at /api/v3, uploads at /api/uploads, Git at /owner/name.git."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from tests.github.git_server import GitApp
from tests.github.serving import App, Message, Receive, Scope, Send, header
from tests.github.stub import (
    accounts,
    actions,
    checks,
    commits,
    git_data,
    issues,
    labels,
    protection,
    pulls,
    releases,
    repos,
    reviews,
    runs,
)
from tests.github.stub.access import has_role, sees
from tests.github.stub.refusals import DOCS, Refusal
from tests.github.stub.world import World

API = "/api/v3"
UPLOADS = "/api/uploads"
# Those whose path can hold slashes come after those that begin like them.
_ROUTERS = (
    *(accounts, checks, commits, git_data, protection, repos, pulls),
    *(reviews, issues, labels, releases, actions, runs),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the API, with the route that gave it in the words of GitHub's description."""

    method: str
    route: str
    query: str
    sent: bytes
    status: int
    headers: Mapping[str, str]
    body: bytes
    path: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.route} {self.status}"


@dataclass(slots=True)
class Journal:
    """All answers that were given, and the calls that the stub could not answer."""

    answers: list[Answer] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def build(world: World, journal: Journal) -> App:
    """The ASGI application."""
    api = _rest(world)
    git = GitApp(world.root, lambda token, slug, writes: _admit(world, token, slug, writes))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/api/"):
            await _recorded(api, world, journal, scope, receive, send)
        else:
            await git(scope, receive, send)

    return app


def _rest(world: World) -> FastAPI:
    api = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    api.state.world = world
    for room in _ROUTERS:
        api.include_router(room.routes, prefix=API)
    api.include_router(releases.uploads, prefix=UPLOADS)

    @api.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> JSONResponse:
        return JSONResponse(error.body, error.status, error.headers)

    @api.exception_handler(RequestValidationError)
    async def not_understood(request: Request, error: RequestValidationError) -> JSONResponse:
        problems = [{"resource": "Request", "code": "invalid", "field": ".".join(map(str, each["loc"]))} |
                    {"message": each["msg"]} for each in error.errors()]  # fmt: skip
        message = "Invalid request.\n\n" + "; ".join(f"{each['field']}: {each['message']}" for each in problems)
        return JSONResponse({"message": message, "errors": problems, "documentation_url": DOCS}, 422)

    @api.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"message": "Not Found", "documentation_url": DOCS, "status": "404"}, 404)

    return api


async def _recorded(api: FastAPI, world: World, journal: Journal, scope: Scope, receive: Receive, send: Send) -> None:
    """Pass a call on, add the headers that GitHub adds to every answer, and write both down."""
    sent, body = bytearray(), bytearray()
    status, headers = 0, {}

    async def hear() -> Message:
        message = await receive()
        sent.extend(message.get("body", b""))
        return message

    async def say(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            message["headers"] = [*message["headers"], *_common(world, scope)]
            headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            body.extend(message.get("body", b""))
            if not message.get("more_body"):
                # Written down before it is sent: who gets the answer may look at once.
                _note(journal, scope, Answer("", "", "", bytes(sent), status, headers, bytes(body)))
        await send(message)

    try:
        await api(scope, hear, say)
    except Exception as error:
        journal.unknown.append(f"{scope['method']} {scope['path']}: {error!r}")


def _note(journal: Journal, scope: Scope, seen: Answer) -> None:
    route = scope.get("route")
    query = scope["query_string"].decode()
    if route is None:
        journal.unknown.append(f"{scope['method']} {scope['path']}")
        return
    template = route.path.removeprefix(API).removeprefix(UPLOADS).replace(":path}", "}")
    made = Answer(scope["method"], template, query, seen.sent, seen.status, seen.headers, seen.body, scope["path"])
    journal.answers.append(made)


def _common(world: World, scope: Scope) -> list[tuple[bytes, bytes]]:
    token = world.tokens.get(header(scope, "authorization").partition(" ")[2])
    remaining = 60
    if token is not None:
        token.remaining = max(0, token.remaining - 1)
        remaining = token.remaining
    values: dict[str, Any] = {
        "x-github-request-id": uuid.uuid4().hex,
        "x-ratelimit-limit": accounts.LIMIT,
        "x-ratelimit-remaining": remaining,
        "x-ratelimit-reset": int(time.time()) + 3600,
        "x-ratelimit-used": accounts.LIMIT - remaining,
        "x-ratelimit-resource": "core",
    }
    if token is not None and token.kind == "classic":
        values["x-oauth-scopes"] = token.scopes
    return [(name.encode(), str(value).encode()) for name, value in values.items()]


def _admit(world: World, value: str | None, slug: str, writes: bool) -> int:
    """Whether Git may read or write a repository, by the same tokens and roles as the API."""
    token = world.tokens.get(value) if value else None
    if value and token is None:
        return 401
    repo = world.repo(slug)
    if repo is None or not sees(world, repo, token):
        return 404 if token else 401
    if token is None:
        return 401 if writes else 200
    level = "write" if writes else "read"
    if token.permissions is not None and token.permissions.get("contents") not in (level, "write"):
        return 403
    allowed = token.kind == "installation" or has_role(world, repo, token.user, level)
    return 200 if allowed else 403


def loads(answer: Answer) -> Any:
    """The JSON of an answer; None where it has none."""
    return json.loads(answer.body) if answer.body else None
