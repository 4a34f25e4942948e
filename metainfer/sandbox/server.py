"""A server inside the sandbox, as its clients and its judge outside see it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from metainfer.errors import MetainferError
from metainfer.sandbox.process import Child
from metainfer.sandbox.records import SandboxResult

if TYPE_CHECKING:
    import httpx

_POLL_S = 0.05


class ServerEndedError(MetainferError):
    """The server ended, or did not come up in time; the message has the end of its log."""


@dataclass(frozen=True)
class ServerHandle:
    """A running server. Clients reach it by `transport()`; host and port in their URLs are then of no account."""

    socket: Path
    port: int
    _child: Child

    @property
    def base_url(self) -> str:
        """The URL to use together with `transport()`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Root of its process tree, as this machine numbers it."""
        return self._child.process.pid

    @property
    def alive(self) -> bool:
        return self._child.process.poll() is None

    @property
    def log(self) -> str:
        """The end of what it wrote."""
        ended = f"\nthe sandbox ended it: {self._child.exceeded}\n" if self._child.exceeded else ""
        return self._child.stdout.text() + self._child.stderr.text() + ended

    def transport(self) -> httpx.HTTPTransport:
        """A fresh transport for httpx, and so for the openai client's `http_client`."""
        import httpx

        return httpx.HTTPTransport(uds=str(self.socket))

    def wait_until_ready(self, timeout_s: float, path: str = "/ready") -> float:
        """Wait until `path` answers 200; returns the seconds. Raises ServerEndedError with the end of the log."""
        import httpx

        began = time.monotonic()
        with httpx.Client(transport=self.transport(), base_url=self.base_url, timeout=5.0) as client:
            while (waited_s := time.monotonic() - began) < timeout_s:
                if not self.alive:
                    raise ServerEndedError(f"the server ended before it was ready:\n{self.log[-1500:]}")
                with contextlib.suppress(httpx.TransportError):
                    if client.get(path).status_code == 200:
                        return waited_s
                time.sleep(_POLL_S)
        raise ServerEndedError(f"the server was not ready within {timeout_s:.0f} s:\n{self.log[-1500:]}")

    def terminate(self) -> None:
        """Send SIGTERM to the server itself, as an operator would."""
        relay = self._relay()
        if relay is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(relay, signal.SIGTERM)

    def wait(self, timeout_s: float) -> SandboxResult:
        """Wait for the end of the server; past `timeout_s` it is killed."""
        return self._child.wait(timeout_s)

    def _relay(self) -> int | None:
        """The relay: outside of a sandbox the process itself, inside the only child of the first process there."""
        process: psutil.Process | None = psutil.Process(self.pid) if self.alive else None
        for _ in range(2 if self._child.sandboxed else 0):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = next(iter(process.children()), None) if process else None
        return process.pid if process else None


def serving(child: Child, socket: Path, port: int) -> Iterator[ServerHandle]:
    """Yield the handle once the relay listens."""
    deadline = time.monotonic() + 30
    while not socket.exists():
        if child.process.poll() is not None or time.monotonic() > deadline:
            result = child.wait(1.0)
            raise ServerEndedError(f"the sandbox for the server did not start: {result.explain()}")
        time.sleep(0.01)
    yield ServerHandle(socket, port, child)
