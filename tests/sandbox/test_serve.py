"""A server inside, its client outside: only the Unix socket connects them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from metainfer.sandbox import Limits, Room, Sandbox, ServerHandle
from metainfer.sandbox.server import ServerEndedError

_SERVER = """
import http.server, signal, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        if self.path == '/stream':
            try:
                while True:
                    self.wfile.write(b'tick'); self.wfile.flush(); time.sleep(0.02)
            except OSError:
                open('client-gone', 'w').close()
        self.wfile.write(self.path.encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length']))
        self.send_response(200); self.end_headers(); self.wfile.write(str(len(body)).encode())
def stop(*_):
    print('draining', flush=True); sys.exit(7)
signal.signal(signal.SIGTERM, stop)
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler).serve_forever()
"""


@pytest.fixture
def room() -> Iterator[Room]:
    with Sandbox().room() as prepared:
        yield prepared


@pytest.fixture
def server(room: Room) -> Iterator[ServerHandle]:
    with room.serve([room.python, "-I", "-c", _SERVER], port=8000) as handle:
        handle.wait_until_ready(20)
        yield handle


def client(server: ServerHandle) -> httpx.Client:
    return httpx.Client(transport=server.transport(), base_url=server.base_url)


def test_a_client_outside_reaches_the_server_inside(server: ServerHandle) -> None:
    with client(server) as http:
        assert http.get("/hello").text == "/hello"


def test_large_bodies_pass_whole(server: ServerHandle) -> None:
    with client(server) as http:
        assert http.post("/", content=b"x" * 3_000_000).text == "3000000"


def test_the_servers_port_is_not_this_machines_port(server: ServerHandle) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        assert ours.getsockname()[1] != 0
    listening = [c.laddr.port for c in psutil.net_connections("tcp") if c.pid == server.pid]
    assert listening == []


def test_a_client_that_goes_away_is_gone_for_the_server_too(server: ServerHandle, room: Room) -> None:
    with client(server) as http, http.stream("GET", "/stream") as response:
        next(response.iter_raw())
    deadline = time.monotonic() + 10
    while not (room.job / "client-gone").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (room.job / "client-gone").exists()


def test_sigterm_reaches_the_server_and_its_status_comes_back(server: ServerHandle) -> None:
    server.terminate()
    result = server.wait(10)
    assert result.rc == 7
    assert "draining" in result.stdout
    assert not server.alive


def test_a_server_that_does_not_start_says_why(room: Room) -> None:
    command = [room.python, "-c", "raise SystemExit('no model here')"]
    with room.serve(command, port=8000) as handle, pytest.raises(ServerEndedError, match="no model here"):
        handle.wait_until_ready(10)


def test_leaving_the_context_ends_everything(room: Room) -> None:
    with room.serve(["sleep", "86417"], port=8000) as handle:
        tree = [handle.pid, *(p.pid for p in psutil.Process(handle.pid).children(recursive=True))]
        assert len(tree) >= 2
    deadline = time.monotonic() + 5
    while any(map(_runs, tree)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_runs, tree))


def test_the_relay_serves_plain_runs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from metainfer.errors import MachineError
    from metainfer.sandbox import sandbox

    def missing() -> Path:
        raise MachineError("none here")

    monkeypatch.setattr(sandbox, "require_bwrap", missing)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Sandbox(allow_unsandboxed=True).room() as room:
        code = _SERVER.replace("8000", str(port))
        with room.serve([room.python, "-I", "-c", code], port=port) as handle:
            handle.wait_until_ready(20)
            with client(handle) as http:
                assert http.get("/plain").text == "/plain"


def _runs(pid: int) -> bool:
    """Whether the process lives; one that only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_server_that_takes_too_much_memory_is_ended_and_its_log_says_so(room: Room) -> None:
    code = "import time\nkept = []\nwhile True: kept.append(bytearray(8 << 20)); time.sleep(0.01)"
    command = [room.python, "-I", "-c", code]
    with (
        room.serve(command, port=8000, limits=Limits(memory_bytes=256 << 20)) as server,
        pytest.raises(ServerEndedError, match="the sandbox ended it: it used more than 256 MiB of memory"),
    ):
        server.wait_until_ready(60)
