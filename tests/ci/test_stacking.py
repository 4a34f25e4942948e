"""Engines on top of a pull request: only where somebody who may write asked, as the API says and not as names do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from metainfer.ci.stacking import StackRefusedError, ask_for_engines, stack_on
from metainfer.forge.github.address import GitHubAddress
from metainfer.forge.github.connect import Connection
from metainfer.forge.github.credentials import Credentials
from metainfer.forge.github.forge import GitHubForge
from metainfer.forge.github.mirror import Mirror
from tests.ci.repositories import Scene

BASE, HEAD = "a" * 40, "b" * 40
Answers = dict[str, Any]


class Api:
    """Answers by path, as GitHub's API would, and keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self.answers: Answers = {
            "/repos/octo/engines/pulls/7": {
                "state": "open",
                "merged": False,
                "head": {"sha": HEAD, "ref": "topic", "repo": {"full_name": "octo/engines"}},
                "base": {"sha": BASE, "ref": "main"},
                "labels": [{"name": "generate"}],
            },
            "/repos/octo/engines/issues/7/events": [
                {"event": "labeled", "label": {"name": "generate"}, "actor": {"login": "reader"}},
                {"event": "unlabeled", "label": {"name": "generate"}, "actor": {"login": "writer"}},
                {"event": "labeled", "label": {"name": "other"}, "actor": {"login": "reader"}},
                {"event": "labeled", "label": {"name": "generate"}, "actor": {"login": "writer"}},
            ],
            "/repos/octo/engines/collaborators/writer/permission": {"permission": "write"},
            "/repos/octo/engines/collaborators/reader/permission": {"permission": "read"},
        }
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                outer.sent.append((self.command, path, json.loads(body) if body else None))
                if path.endswith("/dispatches"):
                    self.send_response(204)
                    self.end_headers()
                    return
                found = outer.answers.get(path)
                data = json.dumps(found if found is not None else {"message": "Not Found"}).encode()
                self.send_response(200 if found is not None else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = serve

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.httpd.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def pull(self) -> dict[str, Any]:
        return dict(self.answers["/repos/octo/engines/pulls/7"])

    def forge(self, folder: Path) -> GitHubForge:
        url = f"http://localhost:{self.httpd.server_port}"
        address = GitHubAddress("octo", "engines", url, url)
        connection = Connection(address, Credentials(token="t"), sleep=lambda seconds: None)
        return GitHubForge(connection, Mirror(address, folder / "mirror.git", lambda: "t"))


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    yield server
    server.httpd.shutdown()
    server.httpd.server_close()


def test_a_writers_label_says_where_engines_go(api: Api, tmp_path: Path) -> None:
    found = stack_on(api.forge(tmp_path), 7)
    assert (found.base, found.head, found.branch) == (BASE, HEAD, "topic")


def test_a_label_that_a_reader_put_on_last_does_nothing(api: Api, tmp_path: Path) -> None:
    api.answers["/repos/octo/engines/issues/7/events"].pop()
    with pytest.raises(StackRefusedError, match="@reader, who put the label generate on, may not write"):
        stack_on(api.forge(tmp_path), 7)


def test_a_bot_by_name_is_nobody(api: Api, tmp_path: Path) -> None:
    event = {"event": "labeled", "label": {"name": "generate"}, "actor": {"login": "github-actions[bot]"}}
    api.answers["/repos/octo/engines/issues/7/events"].append(event)
    with pytest.raises(StackRefusedError, match=r"@github-actions\[bot\].* may not write"):
        stack_on(api.forge(tmp_path), 7)


def test_a_label_of_nobody_known_does_nothing(api: Api, tmp_path: Path) -> None:
    api.answers["/repos/octo/engines/issues/7/events"] = []
    with pytest.raises(StackRefusedError, match="nobody can be told"):
        stack_on(api.forge(tmp_path), 7)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"state": "closed"}, "it is closed"),
        ({"head": {"sha": HEAD, "ref": "topic", "repo": {"full_name": "stranger/engines"}}}, "from another repository"),
        ({"head": {"sha": HEAD, "ref": "topic", "repo": None}}, "from another repository"),
        ({"base": {"sha": BASE, "ref": "other"}}, "it is not for main"),
        ({"labels": []}, "does not bear the label generate"),
    ],
)
def test_other_pull_requests_get_no_engine(api: Api, tmp_path: Path, change: dict[str, Any], why: str) -> None:
    api.answers["/repos/octo/engines/pulls/7"] = {**api.pull, **change}
    with pytest.raises(StackRefusedError, match=why):
        stack_on(api.forge(tmp_path), 7)


def test_asking_starts_the_default_branchs_workflow(api: Api, tmp_path: Path) -> None:
    ask_for_engines(api.forge(tmp_path), 7)
    assert api.sent == [
        (
            "POST",
            "/repos/octo/engines/actions/workflows/generate.yml/dispatches",
            {"ref": "main", "inputs": {"pull": "7"}},
        )
    ]


def test_a_local_forge_has_no_such_labels(scene: Scene) -> None:
    with pytest.raises(StackRefusedError, match="metainfer run"):
        stack_on(scene.forge, 7)
