"""What is sent again, and what is not: counted at a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from metainfer.errors import InputError, MachineError
from metainfer.forge.github.address import GitHubAddress
from metainfer.forge.github.connect import ATTEMPTS, Connection
from metainfer.forge.github.credentials import Credentials
from metainfer.forge.github.errors import GitHubRefusedError

Answer = Callable[[BaseHTTPRequestHandler, int], None]


class Server:
    """Answers every request by `answer`, and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Answer = lambda handler, nth: reply(handler, 200, {})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self.rfile.read(length)
                outer.asked.append(self.command)
                outer.answer(self, len(outer.asked))

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.httpd.serve_forever, args=(0.02,), daemon=True).start()

    def connection(self) -> Connection:
        """With waits that are kept and not waited."""
        self.waits: list[float] = []
        url = f"http://localhost:{self.httpd.server_port}"
        return Connection(GitHubAddress("octo", "engines", url, url), Credentials(token="t"), sleep=self.waits.append)


def reply(handler: BaseHTTPRequestHandler, status: int, data: Any, **headers: str) -> None:
    body = json.dumps(data).encode()
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def drop(handler: BaseHTTPRequestHandler, nth: int) -> None:
    handler.close_connection = True
    handler.connection.shutdown(2)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.httpd.shutdown()
    made.httpd.server_close()


def post(connection: Connection) -> Any:
    return connection.request("POST", "/things", {"a": 1})


@pytest.mark.parametrize(
    "broken", [drop, lambda h, n: reply(h, 502, {"message": "bad gateway"}), lambda h, n: reply(h, 429, {})]
)
def test_the_transport_repeats_a_read_and_never_a_write(server: Server, broken: Answer) -> None:
    server.answer = lambda handler, nth: broken(handler, nth) if nth == 1 else reply(handler, 200, {"ok": 1})
    connection = server.connection()
    assert connection.read("reading", lambda: connection.request("GET", "/things")["ok"]) == 1
    server.asked.clear()
    with pytest.raises(MachineError):
        connection.read("writing without looking", lambda: post(connection))
    assert server.asked == ["POST"]


def test_a_write_whose_answer_was_lost_is_found_and_not_repeated(server: Server) -> None:
    server.answer = drop
    connection = server.connection()
    assert connection.write("writing", lambda: post(connection), lambda: "found") == "found"
    assert server.asked == ["POST"]


def test_a_write_that_left_nothing_is_made_again(server: Server) -> None:
    server.answer = lambda handler, nth: drop(handler, nth) if nth < 3 else reply(handler, 201, {"n": nth})
    connection = server.connection()
    assert connection.write("writing", lambda: post(connection), lambda: None) == {"n": 3}
    assert server.asked == ["POST"] * 3


def test_a_write_is_given_up_after_some_attempts(server: Server) -> None:
    server.answer = drop
    connection = server.connection()
    with pytest.raises(MachineError, match="goes on where this stopped"):
        connection.write("writing", lambda: post(connection), lambda: None)
    assert len(server.asked) == ATTEMPTS


def test_a_secondary_limit_is_waited_for_as_long_as_github_says(server: Server) -> None:
    def limited(handler: BaseHTTPRequestHandler, nth: int) -> None:
        if nth == 1:
            reply(handler, 403, {"message": "You have exceeded a secondary rate limit"}, Retry_After="7")
        else:
            reply(handler, 201, {})

    server.answer = limited
    connection = server.connection()
    connection.write("writing", lambda: post(connection), lambda: None)
    assert server.waits == [7.0]


def test_a_limit_that_lasts_too_long_ends_the_run_with_a_word(server: Server) -> None:
    server.answer = lambda handler, nth: reply(handler, 403, {"message": "rate limit"}, Retry_After="3600")
    connection = server.connection()
    with pytest.raises(MachineError, match="3600 s"):
        connection.write("writing", lambda: post(connection), lambda: None)
    assert server.waits == []


def test_a_refusal_is_told_with_what_github_said_and_the_right_that_is_missing(server: Server) -> None:
    server.answer = lambda handler, nth: reply(
        handler,
        403,
        {"message": "Resource not accessible by personal access token"},
        X_Accepted_GitHub_Permissions="pull_requests=write",
    )
    connection = server.connection()
    with pytest.raises(GitHubRefusedError, match=r"not accessible.*pull_requests=write"):
        connection.write("opening", lambda: post(connection), lambda: None)
    assert server.asked == ["POST"]


def test_taken_is_looked_for_and_then_told(server: Server) -> None:
    server.answer = lambda handler, nth: reply(
        handler, 422, {"message": "Validation Failed", "errors": [{"message": "already exists"}]}
    )
    connection = server.connection()
    assert connection.write("opening", lambda: post(connection), lambda: 7, taken={422}) == 7
    with pytest.raises(GitHubRefusedError, match="already exists"):
        connection.write("opening", lambda: post(connection), lambda: None, taken={422})


def test_bad_credentials_are_told_and_not_shown(server: Server) -> None:
    server.answer = lambda handler, nth: reply(handler, 401, {"message": "Bad credentials"})
    connection = server.connection()
    with pytest.raises(InputError, match="not valid"):
        connection.read("reading", lambda: connection.request("GET", "/user"))


def test_the_token_of_a_workflow_run_speaks_as_actions(server: Server) -> None:
    server.answer = lambda handler, nth: reply(handler, 403, {"message": "Resource not accessible by integration"})
    assert server.connection().own_login == "github-actions[bot]"
