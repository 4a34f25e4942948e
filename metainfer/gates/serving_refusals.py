"""What a server must refuse, by name and without harm: each request here is answered 4xx, and the next one works."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from metainfer.gates.conversation import API_KEY, Conversation, error_of
from metainfer.gates.serving_conformity import Check

_BIG_BYTES = 50 << 20
_UNKNOWN = ("best_of", "logit_bias", "tools", "response_format", "user", "suffix", "guided_json", "no_such_field")


def values_out_of_range_are_refused(c: Conversation) -> None:
    """Numbers that mean nothing are refused with the field's name."""
    for field, values in {
        "max_tokens": ("0", "-1", "1e30", "1.5", "NaN", '"7"', "true", "[]"),
        "temperature": ("-1", "NaN", "Infinity", '"hot"', "1e30"),
        "top_p": ("0", "-0.5", "1.5", "NaN"),
        "top_k": ("0.5", "-1", "1e30"),
        "n": ("0", "2"),
    }.items():
        for value in values:
            text = _with_raw(c, field, value)
            # Plain JSON has no NaN; a server that refuses the body as a whole need not name the field.
            whole = value in ("NaN", "Infinity")
            _refused(c, text.encode(), None if whole else field, f"{field}: {value}")


def _with_raw(c: Conversation, field: str, value: str) -> str:
    mark = "a mark that is replaced"
    return json.dumps(c.body() | {field: mark}).replace(json.dumps(mark), value)


def prompts_that_cannot_be_served_are_refused(c: Conversation) -> None:
    """Nothing to answer, too long, outside of the vocabulary, of the wrong kind."""
    most, vocab = int(c.config["MAX_MODEL_LEN"]), c.vocab_size
    for prompt in _bad_prompts(most, vocab) if c.features["completions"] else ():
        _refused(c, json.dumps(c.body() | {"prompt": prompt}).encode(), "prompt", f"prompt {str(prompt)[:40]}")
    if c.features["completions"]:
        _refused(c, json.dumps(c.body(max_tokens=most) | {"prompt": [1, 2]}).encode(), "max_tokens", "no room left")
    if c.features["chat"]:
        bad: list[Any] = [[], "hello", [{}], [{"role": "pirate", "content": "x"}], [{"role": "user"}], [5]]
        for messages in bad:
            body = {"model": c.model, "messages": messages, "max_tokens": 4}
            _refused(c, json.dumps(body).encode(), "messages", f"messages {messages}", "/v1/chat/completions")
        long = {"model": c.model, "messages": [{"role": "user", "content": "lamp " * most}], "max_tokens": 4}
        _refused(c, json.dumps(long).encode(), None, "a chat that is too long", "/v1/chat/completions")


def _bad_prompts(most: int, vocab: int) -> Iterator[Any]:
    yield from ("", [], [""], [[]], ["ok", ""], 5, {"a": 1}, [1, "a"], [[1], "a"], [1.5], [True])
    yield from ([vocab], [-1], [2**31], [2**70], [[1], [vocab]])
    yield [1] * most
    yield [1] * (most + 1)


def unknown_fields_are_refused_by_name(c: Conversation) -> None:
    """A field that has no effect must not be accepted."""
    for field in _UNKNOWN:
        _refused(c, json.dumps(c.body() | {field: 1}).encode(), field, f"the unknown field {field}")


def features_left_out_are_refused(c: Conversation) -> None:
    """What the spec does not ask for is absent: its endpoint is not there, its field is refused by name."""
    fields: dict[str, Any] = {"streaming": ("stream", True), "stop": ("stop", ["x"]), "seed": ("seed", 1)}
    fields["logprobs"] = ("logprobs", 1 if c.features["completions"] else True)
    for feature, (field, value) in fields.items():
        if not c.features[feature]:
            _refused(c, json.dumps(c.body() | {field: value}).encode(), field, f"{field} without the feature {feature}")
    for feature, path in (("chat", "/v1/chat/completions"), ("completions", "/v1/completions")):
        if not c.features[feature]:
            with c.http() as client:
                status = client.post(path, json=c.body()).status_code
            assert status == 404, f"{path} answers {status} without the feature {feature}"


def bodies_that_are_no_request_are_refused(c: Conversation) -> None:
    """Not JSON, not UTF-8, too deep, of the wrong type."""
    deep = b"[" * 100_000 + b"]" * 100_000
    nested = json.dumps(c.body()).encode()[:-1] + b', "stop": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    bodies = {
        "an empty body": b"",
        "half a body": json.dumps(c.body()).encode()[:-5],
        "invalid UTF-8": json.dumps(c.body()).encode().replace(b"lamp", b"l\xff\xfemp"),
        "half a surrogate pair": json.dumps(c.body(text="x")).encode().replace(b'"x"', b'"\\ud800"'),
        "JSON 100,000 deep": deep,
        "a field 5,000 deep": nested,
        "a list": b"[]",
        "a number": b"5",
        "null": b"null",
        "text": b'"hello"',
        "no model": json.dumps({k: v for k, v in c.body().items() if k != "model"}).encode(),
    }
    for what, body in bodies.items():
        _refused(c, body, None, what)
    _refused(c, json.dumps(c.body() | {"model": "another"}).encode(), "model", "another model", statuses=(404,))
    for field, value in (("stream", "yes"), ("stream", 1), ("temperature", [1]), ("ignore_eos", "no")):
        _refused(c, json.dumps(c.body() | {field: value}).encode(), field, f"{field}: {value}")


def a_huge_body_is_refused(c: Conversation) -> None:
    """50 MB of prompt: refused, whether the server reads it to its end or hangs up."""
    import httpx

    body = b'{"model": ' + json.dumps(c.model).encode() + b', "prompt": "' + b"lamp " * (_BIG_BYTES // 5) + b'"}'
    with c.http() as client:
        try:
            status = client.post(c.endpoint, content=body, headers={"content-type": "application/json"}).status_code
        except httpx.TransportError:
            status = 413  # it hung up on us, as it may
    assert status in (400, 413), f"status {status} for a body of 50 MB"


def routes_that_are_not_there_say_so(c: Conversation) -> None:
    """404 and 405 in the API's own format."""
    with c.http() as client:
        for response, status in ((client.get("/v1/nothing"), 404), (client.get(c.endpoint), 405)):
            assert response.status_code == status, f"status {response.status_code}, not {status}"
            error_of(response)


def broken_http_harms_nobody(c: Conversation) -> None:
    """Half a request, garbage, and a connection that says nothing."""
    head = f"POST {c.endpoint} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n"
    for sent in (b"", b"\x00\xff" * 100, b"GET / HTTP/9.9\r\n\r\n", f"{head}Content-Length: 1000\r\n\r\n{{".encode()):
        connection = c.raw_socket()
        try:
            connection.sendall(sent)
        finally:
            connection.close()
    c.ask()


def _refused(
    c: Conversation,
    body: bytes,
    field: str | None,
    what: str,
    path: str | None = None,
    statuses: tuple[int, ...] = (400, 404, 413, 422),
) -> None:
    with c.http() as client:
        response = client.post(path or c.endpoint, content=body, headers={"content-type": "application/json"})
    assert response.status_code in statuses, f"{what}: status {response.status_code}: {response.text[:200]}"
    message = error_of(response)
    assert field is None or field in message, f"{what}: the refusal does not name {field}: {message[:200]}"


def checks(_features: Mapping[str, bool]) -> list[Check]:
    """All of them, whatever the features."""
    return [
        values_out_of_range_are_refused,
        prompts_that_cannot_be_served_are_refused,
        unknown_fields_are_refused_by_name,
        features_left_out_are_refused,
        bodies_that_are_no_request_are_refused,
        a_huge_body_is_refused,
        routes_that_are_not_there_say_so,
        broken_http_harms_nobody,
    ]
