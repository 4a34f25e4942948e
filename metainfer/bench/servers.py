"""Starting an engine's real server. In a sandbox, or as a plain subprocess."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from metainfer.bench.processes import stop_process
from metainfer.bench.subject import SubjectError
from metainfer.sandbox.sandbox import Sandbox
from metainfer.sandbox.server import ServerEndedError

START_TIMEOUT_S = 180.0
_POLL_S = 0.05
_LOG_TAIL = 1500
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "METAINFER_CACHE", "METAINFER_MODELS", "XDG_CACHE_HOME")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready to answer."""

    base_url: str
    pid: int
    """Root of its process tree as this machine numbers it."""
    transport: httpx.BaseTransport | None = None
    """How to reach it if not by TCP, such as a Unix socket out of a sandbox. It is closed with the client."""


Launcher = Callable[[], AbstractContextManager[RunningServer]]
"""Starts a server; leaving the context ends it."""


def subprocess_env(threads: int, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What every subject's process gets: the few variables it needs, and the run's thread count."""
    inherited = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return inherited | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"} | dict(extra or {})


def engine_launcher(engine_dir: Path, package: str, model_dir: Path, *, threads: int) -> Launcher:
    """Serve an engine's folder in a plain subprocess on a loopback port, without a sandbox."""

    def command(port: int) -> list[str]:
        return _serve(sys.executable, package, str(model_dir), port, threads)

    return tcp_launcher(command, env=subprocess_env(threads, {"PYTHONPATH": str(engine_dir)}))


def sandboxed_launcher(sandbox: Sandbox, engine_dir: Path, package: str, model_dir: Path, *, threads: int) -> Launcher:
    """Serve an engine's folder in a sandbox; a small relay inside passes its bytes on to a Unix socket out here."""

    @contextmanager
    def launch() -> Iterator[RunningServer]:
        port = _free_port()  # a port of this machine's only where the sandbox allows to run without one
        with sandbox.room({"engine": engine_dir, "model": model_dir}) as room:
            command = _serve(room.python, package, room.path("model"), port, threads)
            env = {"PYTHONPATH": room.path("engine"), "OMP_NUM_THREADS": str(threads)}
            try:
                with room.serve(command, port=port, env=env) as server:
                    server.wait_until_ready(START_TIMEOUT_S)
                    yield RunningServer(server.base_url, server.pid, server.transport())
            except ServerEndedError as error:
                raise SubjectError(str(error)) from error

    return launch


def tcp_launcher(
    command: Callable[[int], Sequence[str]],
    *,
    env: Mapping[str, str],
    ready_path: str = "/ready",
    timeout_s: float = START_TIMEOUT_S,
) -> Launcher:
    """Run `command(port)` and wait until `ready_path` answers 200. Raises SubjectError with the end of its log."""

    @contextmanager
    def launch() -> Iterator[RunningServer]:
        port = _free_port()
        base_url = f"http://127.0.0.1:{port}"
        with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen(
                list(command(port)),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
            try:
                _wait_until_ready(process, base_url + ready_path, log, timeout_s)
                yield RunningServer(base_url, process.pid)
            finally:
                stop_process(process)

    return launch


def _serve(python: str, package: str, model_dir: str, port: int, threads: int) -> list[str]:
    """The engine's own command line."""
    where = ["--host", "127.0.0.1", "--port", str(port)]
    return [python, "-m", package, "serve", "--model", model_dir, *where, "--threads", str(threads)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: IO[bytes], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise SubjectError(f"the server ended with status {process.returncode} before it was ready:{_tail(log)}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=2.0, trust_env=False).status_code == 200:
                return
        time.sleep(_POLL_S)
    raise SubjectError(f"the server was not ready within {timeout_s:.0f} s:{_tail(log)}")


def _tail(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LOG_TAIL))
    return "\n" + log.read().decode(errors="replace")
