"""An engine measured as its users see it: over HTTP, by streamed completions of token-id prompts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import httpx

from metainfer.bench.metrics import Timeline
from metainfer.bench.servers import Launcher, RunningServer
from metainfer.bench.subject import SubjectError, SubjectInfo

REQUEST_TIMEOUT_S = 120.0
"""Longest silence within one answer."""


class EngineSubject:
    """Drives one server. `run` may be called from several threads at once."""

    kind: Literal["engine"] = "engine"
    concurrent = True

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        *,
        threads: int,
        version: str = "",
        weight_dtype: Literal["fp32", "bf16"] = "fp32",
        kv_dtype: Literal["fp32", "bf16"] = "fp32",
        mode: str = "its own server, streamed completions over HTTP",
        api_key: str | None = None,
    ) -> None:
        self.name = name
        self._launcher = launcher
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._info = SubjectInfo(
            name=name,
            kind=self.kind,
            version=version,
            weight_dtype=weight_dtype,
            kv_dtype=kv_dtype,
            threads=threads,
            mode=mode,
        )
        self._stack: ExitStack | None = None
        self._server: RunningServer | None = None
        self._client: httpx.Client | None = None
        self._model = ""

    def start(self) -> None:
        with ExitStack() as stack:
            server = self._server = stack.enter_context(self._launcher())
            client = self._client = stack.enter_context(
                httpx.Client(
                    base_url=server.base_url,
                    transport=server.transport,
                    headers=self._headers,
                    timeout=REQUEST_TIMEOUT_S,
                    limits=httpx.Limits(max_connections=None),
                    trust_env=False,
                )
            )
            self._model = _served_model(client)
            self._stack = stack.pop_all()

    def run(self, prompt_token_ids: Sequence[int], max_new_tokens: int) -> Timeline:
        if self._client is None:
            raise SubjectError(f"{self.name}: not started")
        body = {
            "model": self._model,
            "prompt": list(prompt_token_ids),
            "max_tokens": max_new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        sent_ns = time.monotonic_ns()
        try:
            with self._client.stream("POST", "/v1/completions", content=content, headers=headers) as response:
                if response.status_code != 200:
                    refusal = response.read().decode(errors="replace")[:500]
                    raise SubjectError(
                        f"{self.name}: /v1/completions answered {response.status_code}: {refusal} "
                        "(the benchmark needs completions and streaming)"
                    )
                events = list(timed_events(response.iter_raw()))
        except httpx.HTTPError as error:
            raise SubjectError(f"{self.name}: the answer broke off: {type(error).__name__}: {error}") from error
        return self._timeline(sent_ns, events, len(prompt_token_ids), max_new_tokens)

    def info(self) -> SubjectInfo:
        return self._info

    @property
    def pid(self) -> int:
        if self._server is None:
            raise SubjectError(f"{self.name}: not started")
        return self._server.pid

    def stop(self) -> None:
        if self._stack is not None:
            self._stack.close()
        self._stack = self._server = self._client = None

    def _timeline(self, sent_ns: int, events: list[tuple[int, str]], prompt_tokens: int, wanted: int) -> Timeline:
        arrivals: list[int] = []
        texts: list[str] = []
        usage: dict[str, Any] = {}
        for arrived_ns, data in events:
            if data == "[DONE]":
                break
            chunk = _object(self.name, data)
            if "error" in chunk:
                raise SubjectError(f"{self.name}: the stream ended in an error: {chunk['error']}")
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                # A last chunk that brings only the finish reason brought no token, unless a silent one.
                if choice.get("text") or (choice.get("finish_reason") and len(arrivals) < wanted):
                    arrivals.append(arrived_ns)
                    texts.append(choice.get("text") or "")
        self._check(usage, arrivals, prompt_tokens, wanted)
        return Timeline(
            sent_ns=sent_ns,
            arrivals_ns=tuple(arrivals),
            prompt_tokens=prompt_tokens,
            output_tokens=wanted,
            text="".join(texts),
        )

    def _check(self, usage: dict[str, Any], arrivals: list[int], prompt_tokens: int, wanted: int) -> None:
        """What the answer claims must be what was asked for, else its figures mean something else."""
        if usage.get("completion_tokens") != wanted or usage.get("prompt_tokens") != prompt_tokens or not arrivals:
            raise SubjectError(
                f"{self.name}: asked for {wanted} tokens after {prompt_tokens}, "
                f"the answer's usage says {usage or 'nothing'} and {len(arrivals)} chunks carried text"
            )
        if len(arrivals) > wanted:
            raise SubjectError(f"{self.name}: {len(arrivals)} chunks with text for {wanted} tokens")
        if cached := (usage.get("prompt_tokens_details") or {}).get("cached_tokens"):
            raise SubjectError(
                f"{self.name}: {cached} tokens of the prompt came from the prefix cache, "
                "though no prompt was sent twice: the time to first token means nothing"
            )


def timed_events(pieces: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """The `data:` of server-sent events, each with the instant at which the bytes that end it arrived."""
    rest = b""
    for piece in pieces:
        arrived_ns = time.monotonic_ns()
        *events, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            lines = event.decode(errors="replace").split("\n")
            data = [line[5:].removeprefix(" ") for line in lines if line.startswith("data:")]
            if data:
                yield arrived_ns, "\n".join(data)


def _served_model(client: httpx.Client) -> str:
    try:
        response = client.get("/v1/models")
        return str(response.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise SubjectError(f"/v1/models did not name a model: {type(error).__name__}: {error}") from error


def _object(name: str, data: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise SubjectError(f"{name}: not JSON in the stream: {data[:200]!r}") from error
    if not isinstance(value, dict):
        raise SubjectError(f"{name}: not an object in the stream: {data[:200]!r}")
    return value
