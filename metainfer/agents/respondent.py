"""Whoever answers the questions of a run: an endpoint, or replies that were kept."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from metainfer.agents.budget import Purpose
    from metainfer.agents.client import Endpoint
    from metainfer.agents.dialect import Dialect
    from metainfer.agents.messages import ChatRequest, Reply


class Answering(Protocol):
    """What the probe needs of a client."""

    endpoint: Endpoint
    dialect: Dialect

    async def list_models(self) -> dict[str, int | None]: ...

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Reply: ...


class Respondent(Answering, Protocol):
    """What a run needs of a client. Use it inside one event loop, as a context manager."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
