"""The HTTP server on a loopback port, around a toy engine whose answers can be told by eye."""

from __future__ import annotations

import itertools
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from metainfer.ckb.checks import Candidate, Finding

_ANSWER = "abcdefghijklmnopqrstuvwxyz" * 40
"""The toy answers a prompt of n tokens with this text from place n on, a character per token."""
_JSON = {"content-type": "application/json"}


class _ToyCodec:
    """A token per byte."""

    def encode(self, text: str) -> list[int]:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("prompt: has half a character")
        return list(text.encode())

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        if messages[0]["content"] == "refuse me":
            raise ValueError("messages: the chat template refuses them")
        return self.encode("".join(f"{message['role']}:{message['content']};" for message in messages))

    def token_text(self, token_id: int) -> str:
        return chr(token_id) if token_id < 128 else "\ufffd"


class _ToyEngine:
    """Stands for LLMEngine: a token per sequence and step.

    In a prompt `!` makes the step fail, `#` the admission, and `?` makes the engine busy without a token.
    """

    def __init__(self, c: Candidate, pace_s: float = 0.0) -> None:
        self.c = c
        self.codec = _ToyCodec()
        self.block_manager = c.unit("BlockManager")(64, 4)
        self.scheduler = c.unit("Scheduler")(self.block_manager, 4, 8)
        self.pace_s = pace_s
        self.seen: list[tuple[list[int], Any]] = []
        self.aborted: list[int] = []
        self.steps = 0
        self.inside = 0
        self.overlaps = 0

    @property
    def running(self) -> list[Any]:
        running: list[Any] = self.scheduler.running
        return running

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Notes whether two threads are in the engine at once."""
        self.overlaps += self.inside
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def check_request(self, prompt: list[int], params: Any) -> None:
        if not prompt:
            raise ValueError("prompt: is empty")
        if not all(0 <= token_id < self.c.config.VOCAB_SIZE for token_id in prompt):
            raise ValueError("prompt: a token id is not in the vocabulary")
        if len(prompt) >= self.c.config.MAX_MODEL_LEN:
            raise ValueError("prompt: is too long")
        if len(prompt) + params.max_tokens > self.c.config.MAX_MODEL_LEN:
            raise ValueError("max_tokens: is too large")

    def add_request(self, prompt: list[int], params: Any) -> Any:
        with self._alone():
            self.check_request(prompt, params)
            if ord("#") in prompt:
                raise RuntimeError("the toy is broken")
            self.seen.append((prompt, params))
            seq = self.c.unit("Sequence")(len(self.seen), prompt, params)
            self.running.append(seq)
            return seq

    def abort(self, seq_id: int) -> None:
        with self._alone():
            self.aborted.append(seq_id)
            self.running[:] = [seq for seq in self.running if seq.seq_id != seq_id]

    def step(self) -> list[Any]:
        with self._alone():
            self.steps += 1
            time.sleep(self.pace_s)
            if any(ord("!") in seq.token_ids[: seq.num_prompt_tokens] for seq in self.running):
                raise RuntimeError("the toy is broken")
            return [self._append(seq) for seq in list(self.running) if ord("?") not in seq.token_ids]

    def _append(self, seq: Any) -> Any:
        text = _ANSWER[(seq.num_prompt_tokens + seq.num_generated) % len(_ANSWER)]
        seq.token_ids.append(ord(text))
        if seq.num_generated == seq.params.max_tokens:
            seq.finish_reason = self.c.unit("FinishReason").LENGTH
            self.running.remove(seq)
        token = self.c.unit("SampledToken")(ord(text))
        if self.c.facts.logprobs and seq.params.logprobs is not None:
            top = tuple((65 + i, -1.0 - i) for i in range(seq.params.logprobs))
            token = self.c.unit("SampledToken")(ord(text), float("-inf"), top)
        return self.c.unit("StepOutput")(seq, token, text, seq.finish_reason)


@contextmanager
def _serve(c: Candidate, engine: _ToyEngine, **options: Any) -> Iterator[tuple[httpx.Client, Any]]:
    """The candidate's application on a free port, in a thread."""
    import uvicorn

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)  # failures are provoked here
    app = c.unit("create_app")(engine, **options)
    config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            _wait(lambda: server.started, "the server to start")
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False) as client:
                yield client, app
        finally:
            server.should_exit = True
            thread.join(10)


def _wait(condition: Callable[[], bool], what: str, timeout_s: float = 8.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.005)


def _endpoints(c: Candidate) -> dict[str, dict[str, Any]]:
    """Path to a smallest valid body, for the endpoints that this deployment has."""
    name = c.config.ENGINE_NAME
    bodies = {}
    if c.facts.chat:
        chat = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        bodies["/v1/chat/completions"] = chat
    if c.facts.completions:
        bodies["/v1/completions"] = {"model": name, "prompt": "hi", "max_tokens": 5}
    return bodies


def _expected(c: Candidate, path: str) -> tuple[str, int]:
    """Answer and prompt tokens of the smallest valid body."""
    count = len("user:hi;") if "chat" in path else 2
    return _ANSWER[count : count + 5], count


def _text(choice: dict[str, Any]) -> str:
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return str(text)


def _events(response: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]


def check_whole_answers(c: Candidate) -> Iterator[Finding]:
    """Text, finish reason, usage and the envelope of an answer that is not streamed."""
    with _serve(c, _ToyEngine(c)) as (client, _):
        for path, body in _endpoints(c).items():
            reply = client.post(path, json=body)
            answer = reply.json()
            expected, prompt_tokens = _expected(c, path)
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 5, "total_tokens": prompt_tokens + 5}
            choice = answer["choices"][0]
            if reply.status_code != 200 or _text(choice) != expected or len(answer["choices"]) != 1:
                yield Finding("check_whole_answers", f"{path}: {reply.status_code} {answer}, not {expected!r}")
            if choice["finish_reason"] != "length" or choice["index"] != 0:
                yield Finding("check_whole_answers", f"{path}: the choice ends as {choice}")
            if any(answer["usage"].get(name) != count for name, count in usage.items()):
                yield Finding("check_whole_answers", f"{path}: usage is {answer['usage']}, not {usage}")
            kind = "chat.completion" if "chat" in path else "text_completion"
            prefix = "chatcmpl-" if "chat" in path else "cmpl-"
            envelope = (answer["object"], answer["model"], answer["id"].startswith(prefix))
            if envelope != (kind, c.config.ENGINE_NAME, True):
                yield Finding("check_whole_answers", f"{path}: the envelope is {answer}")
            if "chat" in path and choice["message"]["role"] != "assistant":
                yield Finding("check_whole_answers", f"{path}: the message is {choice['message']}")
        models = client.get("/v1/models").json()
        if models["object"] != "list" or [model["id"] for model in models["data"]] != [c.config.ENGINE_NAME]:
            yield Finding("check_whole_answers", f"/v1/models says {models}")
        if not 0 <= time.time() - models["data"][0]["created"] < 60:
            yield Finding("check_whole_answers", f"/v1/models says it was created at {models['data'][0]['created']}")


def check_streams(c: Candidate) -> Iterator[Finding]:
    """Chunks join to the answer, the role comes once, usage only if asked for, and [DONE] last."""
    if not c.facts.streaming:
        return
    with _serve(c, _ToyEngine(c)) as (client, _):
        for path, body in _endpoints(c).items():
            for with_usage in (False, True):
                options = {"stream_options": {"include_usage": True}} if with_usage else {}
                reply = client.post(path, json=body | {"stream": True} | options)
                events = _events(reply)
                if events[-1] != "[DONE]" or not reply.headers["content-type"].startswith("text/event-stream"):
                    yield Finding("check_streams", f"{path}: the stream ends with {events[-1]!r}")
                chunks = [json.loads(event) for event in events[:-1]]
                choices = [choice for chunk in chunks for choice in chunk["choices"]]
                text = "".join(
                    choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices
                )
                if text != _expected(c, path)[0]:
                    yield Finding("check_streams", f"{path}: the chunks join to {text!r}")
                reasons = [choice["finish_reason"] for choice in choices]
                if reasons[-1] != "length" or any(reasons[:-1]):
                    yield Finding("check_streams", f"{path}: the finish reasons are {reasons}")
                roles = [choice["delta"]["role"] for choice in choices if "role" in choice.get("delta", {})]
                if "chat" in path and roles != ["assistant"]:
                    yield Finding("check_streams", f"{path}: the roles told are {roles}")
                kind = "chat.completion.chunk" if "chat" in path else "text_completion"
                if {chunk["object"] for chunk in chunks} != {kind} or len({chunk["id"] for chunk in chunks}) != 1:
                    yield Finding("check_streams", f"{path}: the chunks' envelopes differ, or are no {kind}")
                usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
                if bool(usage) != with_usage or (usage and usage[0]["completion_tokens"] != 5):
                    yield Finding("check_streams", f"{path}: include_usage {with_usage} gives {usage}")
            reply = client.post(path, json=body | {"stream_options": {"include_usage": True}})
            if reply.status_code != 400 or reply.json()["error"]["param"] != "stream_options":
                yield Finding("check_streams", f"{path}: stream_options without a stream: {reply.text}")


def check_parameters_arrive(c: Candidate) -> Iterator[Finding]:
    """What the client asks for is what the engine gets, and what it leaves out has the API's default."""
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "ignore_eos": False, "max_tokens": 5}),
        ({"temperature": 0, "top_p": 0.5, "top_k": 7}, {"temperature": 0, "top_p": 0.5, "top_k": 7}),
        ({"ignore_eos": True, "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0}, {"ignore_eos": True}),
        ({"temperature": None, "top_p": None}, {"temperature": 1.0, "top_p": 1.0}),
    ]
    if c.facts.seed:
        cases += [({"seed": -3}, {"seed": -3}), ({"seed": None}, {"seed": None})]
    if c.facts.stop:
        cases += [({"stop": "x"}, {"stop": ("x",)}), ({"stop": ["x", "yz"]}, {"stop": ("x", "yz")}), ({}, {"stop": ()})]
    engine = _ToyEngine(c)
    with _serve(c, engine) as (client, _):
        for path, body in _endpoints(c).items():
            for fields, expected in cases:
                reply = client.post(path, json=body | fields)
                params = engine.seen[-1][1] if engine.seen else None
                seen = {name: getattr(params, name, "absent") for name in expected}
                if reply.status_code != 200 or seen != expected:
                    yield Finding("check_parameters_arrive", f"{path} with {fields}: {seen}; {reply.text[:200]}")
            client.post(path, json={name: value for name, value in body.items() if name != "max_tokens"})
            prompt, params = engine.seen[-1]
            room = c.config.MAX_MODEL_LEN - len(prompt)
            default = room if "chat" in path else min(16, room)
            if params.max_tokens != default:
                yield Finding("check_parameters_arrive", f"{path}: max_tokens is {params.max_tokens}, not {default}")
        if c.facts.chat:
            body = _endpoints(c)["/v1/chat/completions"]
            client.post("/v1/chat/completions", json=body | {"max_tokens": None, "max_completion_tokens": 3})
            if engine.seen[-1][1].max_tokens != 3:
                yield Finding("check_parameters_arrive", "max_completion_tokens does not arrive")


def check_parts_of_a_message(c: Candidate) -> Iterator[Finding]:
    """A content in parts of text is the same prompt as the parts joined."""
    if not c.facts.chat:
        return
    engine = _ToyEngine(c)
    with _serve(c, engine) as (client, _):
        body = _endpoints(c)["/v1/chat/completions"]
        forms: list[Any] = ["hi, you", [{"type": "text", "text": "hi,"}, {"type": "text", "text": " you"}]]
        for content in forms:
            messages = [{"role": "user", "content": content}]
            reply = client.post("/v1/chat/completions", json=body | {"messages": messages})
            if reply.status_code != 200 or engine.seen[-1][0] != list(b"user:hi, you;"):
                yield Finding("check_parts_of_a_message", f"{content}: {reply.text[:200]}; {engine.seen}")


def check_forms_of_a_prompt(c: Candidate) -> Iterator[Finding]:
    """Text, texts, token ids, lists of token ids: a choice for each prompt, at its place."""
    if not c.facts.completions:
        return
    name = c.config.ENGINE_NAME
    with _serve(c, _ToyEngine(c)) as (client, _):
        forms: list[tuple[Any, list[int]]] = [
            ("abc", [3]),
            (["a", "bcd"], [1, 3]),
            ([5, 6], [2]),
            ([[5], [6, 7, 8, 9], [5]], [1, 4, 1]),
        ]
        for prompt, lengths in forms:
            body = {"model": name, "prompt": prompt, "max_tokens": 4}
            choices = client.post("/v1/completions", json=body).json()["choices"]
            texts = [choice["text"] for choice in sorted(choices, key=lambda choice: choice["index"])]
            if texts != [_ANSWER[n : n + 4] for n in lengths]:
                yield Finding("check_forms_of_a_prompt", f"{prompt!r} gives {texts}")
            if not c.facts.streaming:
                continue
            pieces = [""] * len(lengths)
            for event in _events(client.post("/v1/completions", json=body | {"stream": True}))[:-1]:
                for choice in json.loads(event)["choices"]:
                    pieces[choice["index"]] += choice["text"]
            if pieces != [_ANSWER[n : n + 4] for n in lengths]:
                yield Finding("check_forms_of_a_prompt", f"{prompt!r} streams {pieces}")


def check_logprobs(c: Candidate) -> Iterator[Finding]:
    """Each endpoint has its own format; JSON has no infinity."""
    if not c.facts.logprobs:
        return
    with _serve(c, _ToyEngine(c)) as (client, _):
        for path, body in _endpoints(c).items():
            wish = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"logprobs": 2}
            plain = client.post(path, json=body).json()["choices"][0]
            if plain.get("logprobs") is not None:
                yield Finding("check_logprobs", f"{path}: log-probabilities that nobody asked for")
            report = client.post(path, json=body | wish).json()["choices"][0]["logprobs"]
            if "chat" in path:
                tokens = report["content"]
                text = "".join(token["token"] for token in tokens)
                numbers = [token["logprob"] for token in tokens]
                tops = [{top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in tokens]
                if any(bytes(token["bytes"]).decode() != token["token"] for token in tokens):
                    yield Finding("check_logprobs", f"{path}: bytes and token disagree")
            else:
                text, numbers, tops = "".join(report["tokens"]), report["token_logprobs"], report["top_logprobs"]
            if text != _expected(c, path)[0] or any(number > -1000 for number in numbers):
                yield Finding("check_logprobs", f"{path}: tokens {text!r} with {numbers}")
            if tops != [{"A": -1.0, "B": -2.0}] * 5:
                yield Finding("check_logprobs", f"{path}: alternatives {tops}")
            if c.facts.streaming:
                events = _events(client.post(path, json=body | wish | {"stream": True}))[:-1]
                told = [json.loads(event)["choices"][0]["logprobs"] for event in events]
                count = sum(len(one["content"] if "chat" in path else one["tokens"]) for one in told)
                if count != 5:
                    yield Finding("check_logprobs", f"{path}: {count} of 5 tokens are told in the stream")
        if c.facts.chat:
            body = _endpoints(c)["/v1/chat/completions"]
            error = client.post("/v1/chat/completions", json=body | {"top_logprobs": 2}).json()["error"]
            if error["param"] != "top_logprobs":
                yield Finding("check_logprobs", f"top_logprobs without logprobs: {error}")


def check_refuses_by_name(c: Candidate) -> Iterator[Finding]:
    """What is wrong or not served is a 400 that names its field, in the API's format; the rest still works."""
    bad: list[tuple[str, Any]] = [
        *((field, 1) for field in ("made_up", "tools", "logit_bias", "user", "best_of", "echo", "a b", "str")),
        *(("n", value) for value in (0, 2, "1", True)),
        *(("presence_penalty", 0.5), ("presence_penalty", False), ("frequency_penalty", -1)),
        *(("max_tokens", value) for value in (0, -1, 1.5, 10**30, "5", True, c.config.MAX_MODEL_LEN)),
        *(("temperature", value) for value in (-0.1, 2.5, "hot", float("nan"), float("inf"))),
        *(("top_p", value) for value in (0, 1.5, -1)),
        *(("top_k", value) for value in (0.5, -1)),
        *(("seed", value) for value in ((1.5, 2**70, "x") if c.facts.seed else (1,))),
        *(("stop", value) for value in (("", [""], ["a"] * 9, 5) if c.facts.stop else ("x",))),
        *(("stream", value) for value in (("yes", 1) if c.facts.streaming else (True,))),
    ]
    if not c.facts.streaming:
        bad.append(("stream_options", {"include_usage": True}))
    if not c.facts.logprobs:
        bad += [("logprobs", 1), ("top_logprobs", 1)]
    engine = _ToyEngine(c)
    with _serve(c, engine) as (client, _):
        for path, body in _endpoints(c).items():
            own = [
                ("prompt", value)
                for value in ("", [], [[]], ["a", ""], [10**9], [-1], [[1], "a"], 5, None, [[1]] * 3000)
            ]
            if "chat" in path:
                user = {"role": "user", "content": "a"}
                own = [("messages", value) for value in ([], "a", [user | {"name": "x"}], [user | {"role": "tool"}])]
                image = {"type": "image_url", "image_url": {"url": "x"}}
                bad_content = ("refuse me", [image], "x" * c.config.MAX_MODEL_LEN)
                own += [("messages", [{"role": "user", "content": content}]) for content in bad_content]
                own += [("max_completion_tokens", value) for value in (0, c.config.MAX_MODEL_LEN)]
                if c.facts.logprobs:
                    body = body | {"logprobs": True}
                    own += [("top_logprobs", 21), ("logprobs", 1)]
            for field, value in [*bad, *own]:
                reply = client.post(path, content=json.dumps(body | {field: value}), headers=_JSON)
                yield from _is_refusal(
                    "check_refuses_by_name", reply, f"{path} with {field}={str(value)[:40]}", (400,), field
                )
            half = json.dumps(body).replace("hi", "\\ud800")
            yield from _is_refusal(
                "check_refuses_by_name",
                client.post(path, content=half, headers=_JSON),
                f"{path} with \\ud800",
                (400,),
                None,
            )
            reply = client.post(path, json=body | {"model": "another"})
            yield from _is_refusal("check_refuses_by_name", reply, f"{path} for another model", (404,), "model")
            yield from _still_answers("check_refuses_by_name", c, client, path, body)


def _is_refusal(
    check: str, reply: httpx.Response, what: str, statuses: tuple[int, ...], field: str | None
) -> Iterator[Finding]:
    try:
        error = reply.json()["error"]
        message, param, _type = error["message"], error["param"], error["type"]
    except (ValueError, KeyError, TypeError):
        said = f"{reply.status_code} {reply.text[:200]!r}"
        yield Finding(check, f"{what}: {said} is no error of the API")
        return
    within = field == "messages" and str(param).startswith("messages.")  # messages.0.role says more
    named = field is None or ((param == field or within) and field in message)
    if reply.status_code not in statuses or not named:
        yield Finding(check, f"{what}: {reply.status_code}, param {param!r}, {message!r}")


def _still_answers(
    check: str, c: Candidate, client: httpx.Client, path: str, body: dict[str, Any]
) -> Iterator[Finding]:
    reply = client.post(path, json=body)
    if reply.status_code != 200 or _text(reply.json()["choices"][0]) != _expected(c, path)[0]:
        yield Finding(check, f"{path}: after bad requests a good one gives {reply.text[:200]}")


def check_bodies_that_are_no_json(c: Candidate) -> Iterator[Finding]:
    """Broken, deep, huge and empty bodies are answered by 4xx, and the server lives on."""
    name = c.config.ENGINE_NAME.encode()
    huge = b'{"model": "' + b"x" * ((2 << 20) + 256 * c.config.MAX_MODEL_LEN) + b'"}'
    bodies = {
        "nothing": b"",
        "half an object": b'{"model": ',
        "a list": b"[1]",
        "a number": b"7",
        "invalid UTF-8": b'{"model": "' + name + b'", "prompt": "\xff\xfe"}',
        "100,000 brackets": b"[" * 100_000,
        "a deep object": b'{"model": "m", "prompt": ' + b"[" * 500 + b"]" * 500 + b"}",
        "a number of 6,000 digits": b'{"model": "m", "max_tokens": ' + b"9" * 6000 + b"}",
        "a huge body": huge,
    }
    with _serve(c, _ToyEngine(c)) as (client, _):
        for path, body in _endpoints(c).items():
            for what, content in bodies.items():
                try:
                    reply = client.post(path, content=content, headers=_JSON)
                except httpx.HTTPError as error:
                    yield Finding("check_bodies_that_are_no_json", f"{path}, {what}: no answer ({error!r})")
                    continue
                statuses = (413,) if content is huge else (400, 404, 413)
                yield from _is_refusal("check_bodies_that_are_no_json", reply, f"{path}, {what}", statuses, None)
            yield from _still_answers("check_bodies_that_are_no_json", c, client, path, body)
        for method, path in (("GET", "/v1/nothing"), ("GET", next(iter(_endpoints(c))))):
            yield from _is_refusal(
                "check_bodies_that_are_no_json", client.request(method, path), f"{method} {path}", (404, 405), None
            )


def check_absent_features(c: Candidate) -> Iterator[Finding]:
    """An endpoint that the spec does not ask for is not there."""
    with _serve(c, _ToyEngine(c)) as (client, _):
        for path, there in (("/v1/chat/completions", c.facts.chat), ("/v1/completions", c.facts.completions)):
            if (client.post(path, json={}).status_code == 404) == there:
                yield Finding("check_absent_features", f"{path}: asked for is {there}, and the route says otherwise")


def check_clients_that_go_away(c: Candidate) -> Iterator[Finding]:
    """A client that goes away ends its request within a step or two, streaming or not, in a long prompt too."""
    engine = _ToyEngine(c, pace_s=0.02)
    with _serve(c, engine) as (client, app):
        for path, body in _endpoints(c).items():
            for streamed in (True, False) if c.facts.streaming else (False,):
                for silent in (True, False):  # `?`: the engine is busy, but no token comes
                    long = body | {"max_tokens": 150} | ({"stream": True} if streamed else {})
                    key = "messages" if "chat" in path else "prompt"
                    text = "?" if silent else "x"
                    long[key] = [{"role": "user", "content": text}] if "chat" in path else text
                    before = len(engine.aborted)
                    _send_and_leave(client, path, long, lambda: bool(engine.running))
                    steps = engine.steps
                    try:
                        _wait(lambda n=before: len(engine.aborted) > n, "the abort", 2.0)
                    except TimeoutError:
                        what = f"{path}, stream {streamed}, silent {silent}"
                        yield Finding("check_clients_that_go_away", f"{what}: goes on without its client")
                        return
                    if engine.steps - steps > 10:
                        yield Finding("check_clients_that_go_away", f"{path}: {engine.steps - steps} steps later")
                    if engine.running:
                        yield Finding("check_clients_that_go_away", f"{path}: something still runs")
        _wait(lambda: app.state.service.num_open == 0, "the calls to be closed")
        engine.pace_s = 0.0
        for path, body in _endpoints(c).items():
            yield from _still_answers("check_clients_that_go_away", c, client, path, body)
    if engine.overlaps:
        yield Finding("check_clients_that_go_away", f"{engine.overlaps} times two threads were in the engine at once")


def check_clients_that_leave_in_mid_body(c: Candidate) -> Iterator[Finding]:
    """A request that ends before its body does is nobody's fault here: no traceback in the log."""
    path, body = next(iter(_endpoints(c).items()))
    seen: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = seen.append  # type: ignore[method-assign]
    log = logging.getLogger("uvicorn.error")
    with _serve(c, _ToyEngine(c)) as (client, _):
        log.setLevel(logging.ERROR)
        log.addHandler(listener)
        try:
            with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as connection:
                connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode())
                time.sleep(0.1)
            time.sleep(0.1)
            yield from _still_answers("check_clients_that_leave_in_mid_body", c, client, path, body)
        finally:
            log.removeHandler(listener)
            log.setLevel(logging.CRITICAL + 1)
    for record in seen:
        yield Finding("check_clients_that_leave_in_mid_body", f"the log says {record.getMessage()!r}")


def _send_and_leave(client: httpx.Client, path: str, body: dict[str, Any], arrived: Callable[[], bool]) -> None:
    content = json.dumps(body).encode()
    fields = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    head = f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as connection:
        connection.sendall(head.encode() + content)
        _wait(arrived, "the request to arrive")
        time.sleep(0.05)


def check_engine_failure(c: Candidate) -> Iterator[Finding]:
    """A step that fails: a clear 500 for everyone concerned, unhealthy from then on, nobody left hanging."""
    for (path, body), fault in itertools.product(_endpoints(c).items(), "!#"):
        engine = _ToyEngine(c, pace_s=0.02)
        with _serve(c, engine) as (client, _):
            if client.get("/health").status_code != 200 or client.get("/ready").status_code != 200:
                yield Finding("check_engine_failure", "a good server is unhealthy or not ready")
            replies: list[httpx.Response] = []
            bystander = threading.Thread(
                target=lambda p=path, b=body, to=replies, by=client: to.append(by.post(p, json=b | {"max_tokens": 150}))
            )
            bystander.start()
            _wait(lambda running=engine: bool(running.running), "the bystander to run")
            broken = json.loads(json.dumps(body).replace('"hi"', f'"hi{fault}"'))
            replies.append(client.post(path, json=broken))
            bystander.join(10)
            for reply in replies:
                yield from _is_refusal("check_engine_failure", reply, f"{path} when the engine fails", (500,), None)
                if "the toy is broken" not in reply.text:
                    yield Finding("check_engine_failure", f"{path}: the reason is lost: {reply.text[:200]}")
            if len(replies) != 2:
                yield Finding("check_engine_failure", f"{path}: a request is left hanging")
            for probe in ("/health", "/ready"):
                if client.get(probe).status_code != 503:
                    yield Finding("check_engine_failure", f"{probe} is {client.get(probe).status_code} after a failure")
            yield from _is_refusal(
                "check_engine_failure", client.post(path, json=body), f"{path} after the failure", (503,), None
            )
        if c.facts.streaming:
            with _serve(c, _ToyEngine(c)) as (client, _):
                events = _events(client.post(path, json=broken | {"stream": True}))
                if "error" not in json.loads(events[0]) or "[DONE]" in events:
                    yield Finding("check_engine_failure", f"{path}: a broken stream says {events}")


def check_key(c: Candidate) -> Iterator[Finding]:
    """With a key, /v1 asks for it before it looks at the body; the probes do not."""
    with _serve(c, _ToyEngine(c), api_key="s3cret-é") as (client, _):
        good = {"authorization": "Bearer s3cret-é".encode()}
        for path, body in _endpoints(c).items():
            wrong = ("Bearer other", "s3cret", "Bearer s3", "Basic s3cret")
            for headers in ({}, *({"authorization": key} for key in wrong)):
                for content in (json.dumps(body).encode(), b"{"):
                    reply = client.post(path, content=content, headers={**_JSON, **headers})
                    yield from _is_refusal("check_key", reply, f"{path} with {headers or 'no key'}", (401,), None)
            if client.post(path, json=body, headers=good).status_code != 200:
                yield Finding("check_key", f"{path}: the right key is refused")
        if client.get("/v1/models").status_code != 401 or client.get("/v1/models", headers=good).status_code != 200:
            yield Finding("check_key", "/v1/models does not ask for the key, or refuses it")
        for probe in ("/health", "/ready", "/metrics"):
            if client.get(probe).status_code != 200:
                yield Finding("check_key", f"{probe} asks for the key")


def check_drain(c: Candidate) -> Iterator[Finding]:
    """While it drains, what runs is finished and what is new gets 503; it stays alive, but is not ready."""
    engine = _ToyEngine(c, pace_s=0.02)
    path, body = next(iter(_endpoints(c).items()))
    with _serve(c, engine) as (client, app):
        replies: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: replies.append(client.post(path, json=body | {"max_tokens": 20})))
        thread.start()
        _wait(lambda: bool(engine.running), "the request to run")
        if app.state.service.num_open != 1:
            yield Finding("check_drain", f"{app.state.service.num_open} calls are open, not 1")
        app.state.service.draining = True
        yield from _is_refusal(
            "check_drain", client.post(path, json=body), "a new request during the drain", (503,), None
        )
        probes = client.get("/health").status_code, client.get("/ready").status_code
        if probes != (200, 503):
            yield Finding("check_drain", f"/health and /ready are {probes} during the drain")
        thread.join(10)
        if [reply.status_code for reply in replies] != [200]:
            yield Finding("check_drain", "the request that ran is not finished")
        _wait(lambda: app.state.service.num_open == 0, "the call to be closed")


def check_company(c: Candidate) -> Iterator[Finding]:
    """Many at once: each gets its own answer, and the engine is never entered by two threads."""
    engine = _ToyEngine(c, pace_s=0.002)
    path = next(iter(_endpoints(c)))
    body = _endpoints(c)[path]
    with _serve(c, engine) as (client, _):
        results: dict[int, str] = {}

        def ask(length: int) -> None:
            text = "x" * length
            own = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
            results[length] = _text(client.post(path, json=body | own).json()["choices"][0])

        threads = [threading.Thread(target=ask, args=(length,)) for length in range(1, 13)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        extra = len("user:;") if "chat" in path else 0
        expected = {n: _ANSWER[n + extra : n + extra + 5] for n in range(1, 13)}
        if results != expected:
            yield Finding("check_company", f"answers are mixed up or missing: {results}")
    if engine.overlaps:
        yield Finding("check_company", f"{engine.overlaps} times two threads were in the engine at once")


def check_metrics(c: Candidate) -> Iterator[Finding]:
    """Blocks, requests, tokens and times are told; two applications in one process do not share their figures."""
    with _serve(c, _ToyEngine(c)) as (other, _), _serve(c, _ToyEngine(c)) as (client, _):
        for path, body in _endpoints(c).items():
            client.post(path, json=body)
        figures = _figures(client.get("/metrics").text)
        blocks = [figures.get(f"kv_blocks_{kind}") for kind in ("free", "cached", "used", "total")]
        if blocks != [64, 0, 0, 64]:
            yield Finding("check_metrics", f"free, cached, used and total blocks are {blocks}")
        count = len(_endpoints(c))
        expected = {
            'requests_total{reason="length"}': count,
            'tokens_total{kind="generated"}': 5 * count,
            "time_to_first_token_seconds_count": count,
            "time_per_output_token_seconds_count": 4 * count,
            "requests_running": 0,
            "requests_waiting": 0,
        }
        for name, figure in expected.items():
            if figures.get(name) != figure:
                yield Finding("check_metrics", f"{name} is {figures.get(name)}, not {figure}")
        if _figures(other.get("/metrics").text).get('requests_total{reason="length"}', 0):
            yield Finding("check_metrics", "another application shows these requests as its own")


def _figures(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
