"""A real HTTP server that streams completions by script: known words, known waits, and faults on request.

Run as `python scripted_server.py --port N [--fault NAME]`. A word per token; the prompt's ids are not looked at.
"""

from __future__ import annotations

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = (
    "none",
    "short",
    "cached",
    "no-usage",
    "error-event",
    "refuse",
    "break-off",
    "not-json",
    "merge",
    "silent-end",
)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fault = "none"
    first_s = 0.0
    token_s = 0.0

    def do_GET(self) -> None:
        if self.path == "/ready":
            return self.answer(200, {"status": "ready"})
        if self.path == "/v1/models":
            return self.answer(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        return self.answer(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == "scripted"
        assert body["temperature"] == 0
        assert body["ignore_eos"] is True
        assert body["stream_options"] == {"include_usage": True}
        if self.fault == "refuse":
            return self.answer(400, {"error": {"message": "stream: is not supported here"}})
        return self.stream(len(body["prompt"]), body["max_tokens"])

    def stream(self, prompt_tokens: int, wanted: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(self.first_s)
        words = [f" w{index}" for index in range(wanted)]
        if self.fault == "merge":
            words = ["".join(words[at : at + 2]) for at in range(0, wanted, 2)]
        for place, word in enumerate(words):
            last = place == len(words) - 1
            if self.fault == "break-off" and last:
                self.close_connection = True
                return
            if self.fault == "silent-end" and last:
                word = ""
            self.event({"choices": [{"index": 0, "text": word, "finish_reason": "length" if last else None}]})
            time.sleep(self.token_s)
        if self.fault == "error-event":
            self.event({"error": {"message": "the engine failed"}})
        if self.fault == "not-json":
            self.write("data: {oops\n\n")
        told = wanted - 1 if self.fault == "short" else wanted
        usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": told}
        usage["prompt_tokens_details"] = {"cached_tokens": 16 if self.fault == "cached" else 0}
        if self.fault != "no-usage":
            self.event({"choices": [], "usage": usage})
        self.write("data: [DONE]\n\n")
        self.write("")

    def event(self, payload: dict[str, Any]) -> None:
        self.write(f"data: {json.dumps(payload)}\n\n")

    def write(self, text: str) -> None:
        """One piece of the chunked body; an empty one ends it."""
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def answer(self, status: int, payload: dict[str, Any]) -> None:
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--first-s", type=float, default=0.0)
    parser.add_argument("--token-s", type=float, default=0.0)
    args = parser.parse_args()
    Handler.fault, Handler.first_s, Handler.token_s = args.fault, args.first_s, args.token_s
    ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
