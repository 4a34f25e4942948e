"""The connection to an endpoint, with an end to what it may send: a line without one would fill the memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
from openai import DefaultAsyncHttpxClient

MAX_BYTES = 256 << 20
"""Of one response. An event of a stream takes some 300 bytes beside its token."""
MAX_PACKED_BYTES = 1 << 20
"""Of one that is compressed although nobody asked for it; unpacked it may be a thousand times as large."""


def bounded_client(timeout: httpx2.Timeout) -> DefaultAsyncHttpxClient:
    """A client whose responses end: httpx2.RemoteProtocolError for one that sends more."""
    return DefaultAsyncHttpxClient(transport=_Bounded(), timeout=timeout, headers={"Accept-Encoding": "identity"})


class _Bounded(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        is_packed = response.headers.get("content-encoding", "identity").strip().lower() != "identity"
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream, MAX_PACKED_BYTES if is_packed else MAX_BYTES)
        return response


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx2.RemoteProtocolError(f"the response has more than {self._limit:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
