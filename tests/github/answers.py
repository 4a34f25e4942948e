"""A real HTTP server that gives fixed answers, for settings that only a real repository's administrator can make."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from metainfer.forge.github.address import GitHubAddress
from metainfer.forge.github.connect import Connection
from metainfer.forge.github.credentials import Credentials

Answer = tuple[int, Any]
NOT_FOUND: Answer = (404, {"message": "Not Found"})
FORBIDDEN: Answer = (403, {"message": "Resource not accessible by personal access token"})


@contextmanager
def serving(answers: dict[str, Answer], headers: dict[str, str] | None = None) -> Iterator[Connection]:
    """`answers`: path without its query → (status, JSON). Any other path is not found. Only GET is answered."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, data = answers.get(urlsplit(self.path).path, NOT_FOUND)
            body = json.dumps(data).encode()
            self.send_response(status)
            sent = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
            for name, value in sent.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://localhost:{server.server_port}"
    try:
        yield Connection(GitHubAddress("octo", "engines", url, url), Credentials(token="t"), sleep=lambda _: None)
    finally:
        server.shutdown()
        server.server_close()
