"""How the serving gate talks to a server: the official client, raw HTTP, and the server's own metrics."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from metainfer.sandbox import ServerHandle

if TYPE_CHECKING:
    import openai

API_KEY = "key-of-the-gate"
_TIMEOUT_S = 180.0
_METRIC = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([-+0-9.eE]+)$", re.MULTILINE)


@dataclass
class Conversation:
    """One server, what its engine was made to do, and what the reference says that it should answer."""

    server: ServerHandle
    model: str
    features: Mapping[str, bool]
    config: Mapping[str, Any]
    expected: Mapping[str, Any]
    seed: int
    vocab_size: int
    figures: dict[str, float | int | str | bool] = field(default_factory=dict)

    @contextlib.contextmanager
    def http(self, *, key: str | None = API_KEY, timeout_s: float = _TIMEOUT_S) -> Iterator[httpx.Client]:
        """A raw client; it is closed afterwards, and with it all its connections."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        client = httpx.Client(
            transport=self.server.transport(), base_url=self.server.base_url, headers=headers, timeout=timeout_s
        )
        with client:
            yield client

    @contextlib.contextmanager
    def openai(self) -> Iterator[openai.OpenAI]:
        """The official client."""
        import openai

        with httpx.Client(transport=self.server.transport(), timeout=_TIMEOUT_S) as client:
            own: Any = client  # newer versions of openai name another client's type, and take this one too
            yield openai.OpenAI(base_url=f"{self.server.base_url}/v1", api_key=API_KEY, http_client=own, max_retries=0)

    @property
    def endpoint(self) -> str:
        """The endpoint that general checks use."""
        return "/v1/completions" if self.features["completions"] else "/v1/chat/completions"

    def body(self, text: str = "The lamp", **fields: Any) -> dict[str, Any]:
        """A valid body for `endpoint`: greedy, four tokens, unless `fields` say otherwise."""
        if self.features["completions"]:
            asked: dict[str, Any] = {"prompt": text}
        else:
            asked = {"messages": [{"role": "user", "content": text}]}
        return {"model": self.model, "max_tokens": 4, "temperature": 0, **asked, **fields}

    def ask(self, **fields: Any) -> dict[str, Any]:
        """Post a valid body and return the answer. AssertionError with the server's words if it is refused."""
        with self.http() as client:
            return answer_of(client.post(self.endpoint, json=self.body(**fields)))

    def text(self, **fields: Any) -> str:
        """The text of `ask`."""
        return text_of(self.ask(**fields)["choices"][0])

    def stream(self, **fields: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed answer; checks that it is well-formed to its `[DONE]`."""
        with self.http() as client:
            response = client.post(self.endpoint, json=self.body(stream=True, **fields))
            assert response.status_code == 200, f"status {response.status_code}: {response.text[:300]}"
            kind = response.headers.get("content-type", "")
            assert kind.startswith("text/event-stream"), f"content type {kind}"
            return chunks_of(response.text)

    def metrics(self) -> dict[str, float]:
        """`name` or `name{labels}` to value."""
        with self.http(key=None) as client:
            text = client.get("/metrics").text
        return {
            f"{name}{{{labels}}}" if labels else name: float(value) for name, labels, value in _METRIC.findall(text)
        }

    def until(self, what: str, holds: Any, timeout_s: float = 30.0) -> None:
        """Wait until `holds(metrics)`. AssertionError with the metrics that stand in the way."""
        deadline = time.monotonic() + timeout_s
        while not holds(metrics := self.metrics()):
            kept = {k: v for k, v in metrics.items() if k.startswith(("kv_blocks", "requests_"))}
            assert time.monotonic() < deadline, f"{what} within {timeout_s:.0f} s: {kept}"
            time.sleep(0.05)

    def until_idle(self, timeout_s: float = 60.0) -> None:
        """Nothing runs or waits, and every block is free or cached."""
        self.until("idle with all blocks free or cached", is_idle, timeout_s)

    def raw_socket(self) -> socket.socket:
        """A bare connection, for what no HTTP client would send."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_TIMEOUT_S)
        connection.connect(str(self.server.socket))
        return connection


def is_idle(metrics: Mapping[str, float]) -> bool:
    free, cached = metrics["kv_blocks_free"], metrics["kv_blocks_cached"]
    quiet = metrics["kv_blocks_used"] == metrics["requests_running"] == metrics["requests_waiting"] == 0
    return quiet and free + cached == metrics["kv_blocks_total"]


def answer_of(response: httpx.Response) -> dict[str, Any]:
    """The body of a success, as an object."""
    assert response.status_code == 200, f"status {response.status_code}: {response.text[:300]}"
    body = response.json()
    assert isinstance(body, dict), "the answer is no object"
    return body


def text_of(choice: Mapping[str, Any]) -> str:
    """The text of a choice of either endpoint, whole or streamed."""
    if "text" in choice:
        return str(choice["text"])
    part = choice.get("message") or choice.get("delta") or {}
    return str(part.get("content") or "")


def chunks_of(text: str) -> list[dict[str, Any]]:
    """Server-sent events as objects; the last must be `[DONE]`."""
    lines = [line for line in text.splitlines() if line]
    assert lines, "the stream is empty"
    assert all(line.startswith("data: ") for line in lines), f"not an event: {lines[0][:100]}"
    assert lines[-1] == "data: [DONE]", f"the stream ends with {lines[-1][:200]}"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def error_of(response: httpx.Response) -> str:
    """The message of a refusal in the format of the API, with its field. AssertionError if it is not one."""
    try:
        error = response.json()["error"]
        message, kind = error["message"], error["type"]
    except (ValueError, KeyError, TypeError):
        raise AssertionError(f"status {response.status_code} without an error object: {response.text[:200]}") from None
    assert isinstance(message, str), "the error's message is no text"
    assert message, "the error's message is empty"
    assert isinstance(kind, str), "the error has no type"
    return f"{error.get('param') or ''} {message}"
