"""Clients that come together, that go away, and a server that is told to stop."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from metainfer.gates.conversation import API_KEY, Conversation, chunks_of, text_of
from metainfer.gates.serving_conformity import Check

_MOST_CLIENTS = 32
_DRAIN_S = 120.0
_LINGER_S = 20.0
"""How long a connection without a request may hold up the end."""
_TRIES = 3


def more_clients_than_places_are_all_served(c: Conversation) -> None:
    """Twice as many requests as run at once: all are answered whole, and greedy ones as if alone."""
    count = min(_MOST_CLIENTS, 2 * int(c.config["MAX_CONCURRENCY"]))

    def one(index: int) -> dict[str, Any]:
        return c.ask(text=f"Ship number {index}", max_tokens=6 + index % 5, ignore_eos=True)

    alone = [text_of(one(index)["choices"][0]) for index in range(3)]
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(one, range(count)))
    for index, answer in enumerate(answers):
        assert answer["usage"]["completion_tokens"] == 6 + index % 5, f"request {index}: {answer['usage']}"
    assert [text_of(a["choices"][0]) for a in answers[:3]] == alone, "company changes greedy answers"
    c.figures["clients"] = count
    c.until_idle()


def clients_that_go_away_free_their_blocks(c: Conversation) -> None:
    """Mid-stream and before the first token: what nobody waits for is aborted."""
    reason = 'requests_total{reason="abort"}'
    for streamed in (True, False) if c.features["streaming"] else (False,):
        for _ in range(_TRIES):
            before = c.metrics().get(reason, 0.0)
            _leave_early(c, streamed)
            c.until_idle()
            if c.metrics().get(reason, 0.0) > before:
                break  # else it was done before the server could notice
        else:
            raise AssertionError(f"a client goes away ({'mid-stream' if streamed else 'before an answer'}): no abort")


def _leave_early(c: Conversation, streamed: bool) -> None:
    """Four long requests, so that none is done before its client has left."""
    room = int(c.config["MAX_MODEL_LEN"]) - 32
    fields: dict[str, Any] = {"max_tokens": room, "ignore_eos": True}
    barrier = threading.Barrier(4, timeout=60)

    def leave(index: int) -> None:
        body = c.body(text=f"Gone {index}", **fields)
        if not streamed:
            connection = c.raw_socket()
            content = json.dumps(body).encode()
            head = f"POST {c.endpoint} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n"
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            barrier.wait()
            time.sleep(0.05)
            connection.close()
            return
        with c.http() as client, client.stream("POST", c.endpoint, json=body | {"stream": True}) as response:
            for _ in response.iter_lines():
                break
            barrier.wait()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(leave, range(4)))


def nothing_leaks(c: Conversation) -> None:
    """Idle after everything before: free + cached = total, and none is used."""
    c.until_idle()
    metrics = c.metrics()
    total = int(metrics["kv_blocks_total"])
    assert total == int(c.config["NUM_KV_BLOCKS"]), f"{total} blocks, the configuration has {c.config['NUM_KV_BLOCKS']}"
    c.figures["blocks_free"] = int(metrics["kv_blocks_free"])
    c.figures["blocks_cached"] = int(metrics["kv_blocks_cached"])
    c.figures["blocks_total"] = total


def sigterm_drains(c: Conversation) -> None:
    """What runs is answered to its end; what is new is refused; then the process ends, whoever is still connected."""
    answer: list[str] = []
    started = threading.Event()
    tokens = min(64, int(c.config["MAX_MODEL_LEN"]) // 4)

    def run() -> None:
        fields: dict[str, Any] = {"max_tokens": tokens, "ignore_eos": True}
        with c.http() as client:
            if not c.features["streaming"]:
                started.set()
                answer.append(client.post(c.endpoint, json=c.body(**fields)).text)
                return
            with client.stream("POST", c.endpoint, json=c.body(stream=True, **fields)) as response:
                text = ""
                for piece in response.iter_text():
                    text += piece
                    started.set()
            answer.append(text)

    client_thread = threading.Thread(target=run)
    client_thread.start()
    started.wait(60)
    if not c.features["streaming"]:
        c.until("the request runs", lambda metrics: metrics["requests_running"] >= 1, 20)
    with c.raw_socket() as unfinished:
        head = f"POST {c.endpoint} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\nContent-Length: 99\r\n"
        unfinished.sendall(f"{head}\r\n{{".encode())
        c.server.terminate()
        _new_ones_are_refused(c)
        client_thread.join(_DRAIN_S)
        result = c.server.wait(_LINGER_S)
    assert not result.timed_out, f"the server still runs {_LINGER_S:.0f} s after its last answer, SIGTERM or not"
    assert result.rc in (0, 143), f"after SIGTERM the server {result.explain(300)}"
    assert answer, "a request that ran when SIGTERM came was not answered"
    if c.features["streaming"]:
        reasons = [chunk["choices"][0].get("finish_reason") for chunk in chunks_of(answer[0]) if chunk["choices"]]
        assert reasons[-1] == "length", f"a stream that ran when SIGTERM came ended with {reasons[-1]}"
    else:
        assert json.loads(answer[0])["usage"]["completion_tokens"] == tokens


def _new_ones_are_refused(c: Conversation) -> None:
    """Once it drains, a new request gets 503, or no connection; never an answer that is then cut off."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            with c.http(timeout_s=60) as client:
                status = client.post(c.endpoint, json=c.body(max_tokens=1)).status_code
        except httpx.TransportError:
            return
        if status == 503:
            return
        assert status == 200, f"status {status} while draining"
    raise AssertionError("20 s after SIGTERM new requests are still served")


def checks(_features: Mapping[str, bool]) -> list[Check]:
    """In this order: the last one ends the server."""
    return [
        more_clients_than_places_are_all_served,
        clients_that_go_away_free_their_blocks,
        nothing_leaks,
        sigterm_drains,
    ]
