"""The OpenAI-compatible server: one thread steps the engine, the event loop talks to clients."""

import asyncio
import hmac
import json
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .config import ENGINE_NAME, MAX_MODEL_LEN
from .units import FinishReason, LLMEngine, SamplingParams, Sequence, StepOutput

_MAX_BODY = (1 << 20) + 128 * MAX_MODEL_LEN
_MAX_PROMPTS = 1 << 8
_DEFAULT_COMPLETION = 1 << 4
_LEAST_LOGPROB = -9999.0
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_PASSED_ON = {"temperature", "top_p", "top_k", "ignore_eos", "seed"}


class _ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _json(payload: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(payload), status, media_type="application/json")


# What clients send.


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _StreamOptions(_Strict):
    include_usage: bool | None = None


class _Body(_Strict):
    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=1)
    presence_penalty: float | None = Field(None, ge=0, le=0)
    frequency_penalty: float | None = Field(None, ge=0, le=0)


class _Part(_Strict):
    type: Literal["text"]
    text: str


class _Message(_Strict):
    role: Literal["system", "user", "assistant"]
    content: str | list[_Part]

    def plain(self) -> dict[str, str]:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text}


class _ChatBody(_Body):
    messages: list[_Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class _CompletionBody(_Body):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None


def _parse(kind: type[_ChatBody] | type[_CompletionBody], data: bytes) -> _ChatBody | _CompletionBody:
    try:
        body = kind.model_validate(json.loads(data.decode("utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if not first["loc"]:
            raise _ApiError(400, "the body is not a JSON object") from None
        name, *path = map(str, first["loc"])
        raise _ApiError(400, f"{name}: {first['msg']} {'.'.join(path)}".rstrip(), name) from None
    except (ValueError, RecursionError):
        raise _ApiError(400, "the body is not JSON") from None
    if body.stream_options is not None and not body.stream:
        raise _ApiError(400, "stream_options: only with stream: true", "stream_options")
    if isinstance(body, _ChatBody) and body.top_logprobs is not None and not body.logprobs:
        raise _ApiError(400, "top_logprobs: only with logprobs: true", "top_logprobs")
    if body.model != ENGINE_NAME:
        raise _ApiError(404, f"model: only {ENGINE_NAME} is served here", "model", "model_not_found")
    return body


def _prepare(engine: LLMEngine, body: _ChatBody | _CompletionBody) -> list[tuple[list[int], SamplingParams]]:
    """Token ids and parameters of each prompt, checked. ValueError `field: why`, with the engine's names."""
    given: dict[str, Any] = body.model_dump(include=_PASSED_ON, exclude_none=True)
    if body.stop is not None:
        given["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    wanted, default = body.max_tokens, MAX_MODEL_LEN
    if isinstance(body, _ChatBody):
        wanted = wanted if body.max_completion_tokens is None else body.max_completion_tokens
        given["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
        prompts = [engine.codec.encode_chat([message.plain() for message in body.messages])]
    else:
        given["logprobs"], default = body.logprobs, _DEFAULT_COMPLETION
        is_one = isinstance(body.prompt, str) or any(isinstance(one, int) for one in body.prompt)
        several: list[Any] = [body.prompt] if is_one else list(body.prompt)
        if not 1 <= len(several) <= _MAX_PROMPTS:
            raise ValueError(f"prompt: 1 to {_MAX_PROMPTS} of them, not {len(several)}")
        prompts = [engine.codec.encode(one) if isinstance(one, str) else one for one in several]
    prepared = []
    for prompt in prompts:
        # A prompt that leaves no room is what is wrong then, and not the number of tokens.
        room = max(1, MAX_MODEL_LEN - len(prompt))
        params = SamplingParams(min(default, room) if wanted is None else wanted, **given)
        engine.check_request(prompt, params)
        prepared.append((prompt, params))
    return prepared


def _refusal(error: ValueError, body: _Body) -> _ApiError:
    """The engine's `field: why`, by the name that the client gave to the field."""
    name, _, why = str(error).partition(": ")
    if isinstance(body, _ChatBody):
        tokens = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        name = {"prompt": "messages", "logprobs": "top_logprobs", "max_tokens": tokens}.get(name, name)
    return _ApiError(400, f"{name}: {why}", name)


# The engine's thread and what it shares with the event loop.


@dataclass(eq=False)
class _Call:
    """One request of a client: a sequence per prompt, and what happens to them."""

    prompts: list[tuple[list[int], SamplingParams]]
    arrival: float
    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[tuple[int, StepOutput] | Exception] = field(default_factory=asyncio.Queue)
    sequences: list[Sequence] = field(default_factory=list)
    dropped: bool = False

    def tell(self, event: tuple[int, StepOutput] | Exception) -> None:
        """From the engine's thread. A loop that was closed has nobody left to tell."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class _Metrics:
    """What /metrics shows. Only the engine's thread writes it."""

    def __init__(self, engine: LLMEngine) -> None:
        self.registry = CollectorRegistry()
        self._engine = engine
        blocks = [f"kv_blocks_{name}" for name in ("free", "cached", "used", "total")]
        names = [*blocks, "requests_running", "requests_waiting"]
        self._gauges = [Gauge(name, name.replace("_", " "), registry=self.registry) for name in names]
        self._requests = Counter("requests", "ended requests", ["reason"], registry=self.registry)
        self._tokens = Counter("tokens", "tokens of ended requests", ["kind"], registry=self.registry)
        self.first_token = Histogram("time_to_first_token_seconds", "from arrival", registry=self.registry)
        self.later_token = Histogram("time_per_output_token_seconds", "its step", registry=self.registry)
        self.look()

    def look(self) -> None:
        blocks, scheduler = self._engine.block_manager, self._engine.scheduler
        values = (blocks.num_free, blocks.num_cached, blocks.num_used, blocks.num_blocks)
        for gauge, value in zip(self._gauges, (*values, len(scheduler.running), len(scheduler.waiting)), strict=True):
            gauge.set(value)

    def ended(self, seq: Sequence, reason: FinishReason) -> None:
        self._requests.labels(str(reason)).inc()
        self._tokens.labels("prompt").inc(seq.num_prompt_tokens)
        self._tokens.labels("cached").inc(seq.num_cached_tokens)
        self._tokens.labels("generated").inc(seq.num_generated)


class _Service:
    """Hands calls to the thread that steps the engine, which alone touches it."""

    def __init__(self, engine: LLMEngine) -> None:
        self.draining = False
        self.num_open = 0
        self.failure: str | None = None
        self.engine = engine
        self.metrics = _Metrics(engine)
        self._wake = threading.Condition()
        self._inbox: deque[_Call | None] = deque()  # None ends the thread
        self._open: dict[int, tuple[_Call, int]] = {}
        self._thread: threading.Thread | None = None

    def refuse_if_closed(self) -> None:
        if self.failure is not None or self.draining:
            raise _ApiError(503, self.failure or "the server is about to end")

    def submit(self, call: _Call) -> None:
        """Queue a call, or raise what became of the engine."""
        with self._wake:
            self.refuse_if_closed()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
                self._thread.start()
            self._put(call)

    def drop(self, call: _Call) -> None:
        """Its client is gone: abort what is left of it before the next step."""
        with self._wake:
            call.dropped = True
            self._put(call)

    def close(self) -> None:
        """End the thread after its step."""
        with self._wake:
            thread, self._thread = self._thread, None
            self._put(None)
        if thread is not None:
            thread.join()

    def _put(self, call: _Call | None) -> None:
        self._inbox.append(call)
        self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._inbox or self._open):
                    self._wake.wait()
                calls = [self._inbox.popleft() for _ in range(len(self._inbox))]
            try:
                for call in calls:
                    if call is None:
                        return
                    self._abort(call) if call.dropped else self._add(call)
                begin = time.perf_counter()
                outputs = self.engine.step() if self._open else []
            except Exception as error:
                self._fail(f"the engine failed: {type(error).__name__}: {error}", calls)
                return
            self.metrics.look()
            for output in outputs:
                self._tell(output, time.perf_counter() - begin)

    def _add(self, call: _Call) -> None:
        for i, (prompt, params) in enumerate(call.prompts):
            call.sequences.append(self.engine.add_request(prompt, params))
            self._open[call.sequences[-1].seq_id] = (call, i)

    def _abort(self, call: _Call) -> None:
        for seq in call.sequences:
            if self._open.pop(seq.seq_id, None) is not None:
                self.engine.abort(seq.seq_id)
                self.metrics.ended(seq, FinishReason.ABORT)

    def _tell(self, output: StepOutput, seconds: float) -> None:
        call, index = self._open[output.seq.seq_id]
        if output.seq.num_generated == 1:
            self.metrics.first_token.observe(time.perf_counter() - call.arrival)
        else:
            self.metrics.later_token.observe(seconds)
        if output.finish_reason is not None:
            del self._open[output.seq.seq_id]
            self.metrics.ended(output.seq, output.finish_reason)
        call.tell((index, output))

    def _fail(self, reason: str, calls: list[_Call | None]) -> None:
        """Nobody waits for ever: tell all who run or wait, and give their blocks back."""
        with self._wake:
            self.failure = reason
            told = {*calls, *self._inbox, *(call for call, _ in self._open.values())}
        for call in filter(None, told):
            with suppress(Exception):
                self._abort(call)
            call.tell(_ApiError(500, reason))
        with suppress(Exception):
            self.metrics.look()


# Answers.


class _Answer(Response):
    """Waits for a call's tokens and the client's end alike, and leaves nothing open behind, however it ends."""

    def __init__(self, service: _Service, call: _Call, body: _ChatBody | _CompletionBody) -> None:
        super().__init__()
        self._service, self._call, self._body = service, call, body
        self._is_chat = isinstance(body, _ChatBody)
        self._with_logprobs = call.prompts[0][1].logprobs is not None
        self._head = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if self._is_chat else "text_completion",
            "created": int(time.time()),
            "model": ENGINE_NAME,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive))
        try:
            await (self._stream(send) if self._body.stream else (await self._whole())(scope, receive, send))
        except (ClientDisconnect, OSError):
            return
        finally:
            watcher.cancel()
            self._service.drop(self._call)
            self._service.num_open -= 1

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._service.drop(self._call)
        self._call.events.put_nowait(ClientDisconnect())

    async def _outputs(self) -> AsyncIterator[tuple[int, StepOutput]]:
        """Each token of each prompt. Raises if the client goes away or the engine fails."""
        left = len(self._call.prompts)
        while left:
            event = await self._call.events.get()
            if isinstance(event, Exception):
                raise event
            left -= event[1].finish_reason is not None
            yield event

    async def _whole(self) -> Response:
        parts: list[list[StepOutput]] = [[] for _ in self._call.prompts]
        try:
            async for index, output in self._outputs():
                parts[index].append(output)
        except _ApiError as error:
            return _json(error.body, error.status)
        texts = ["".join(output.text for output in outputs) for outputs in parts]
        said = [{"message": {"role": "assistant", "content": t}} if self._is_chat else {"text": t} for t in texts]
        choices = [self._choice(i, said[i], outputs) for i, outputs in enumerate(parts)]
        return _json({**self._head, "choices": choices, "usage": self._usage()})

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for event in self._events():
            await send({"type": "http.response.body", "body": b"data: %b\n\n" % event.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _events(self) -> AsyncIterator[str]:
        head = self._head | ({"object": "chat.completion.chunk"} if self._is_chat else {})
        with_usage = self._body.stream_options is not None and self._body.stream_options.include_usage
        said: dict[str, Any] = {"role": "assistant", "content": ""}
        try:
            async for index, output in self._outputs():
                if not (output.text or output.finish_reason or self._with_logprobs):
                    continue
                said |= {"content": output.text} if output.text else {}
                choice = self._choice(index, {"delta": said} if self._is_chat else {"text": output.text}, [output])
                yield json.dumps({**head, "choices": [choice], **({"usage": None} if with_usage else {})})
                said = {}
            if with_usage:
                yield json.dumps({**head, "choices": [], "usage": self._usage()})
            yield "[DONE]"
        except _ApiError as error:
            yield json.dumps(error.body)

    def _choice(self, index: int, said: dict[str, Any], outputs: list[StepOutput]) -> dict[str, Any]:
        logprobs = self._logprobs(outputs) if self._with_logprobs else None
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": outputs[-1].finish_reason}

    def _logprobs(self, outputs: list[StepOutput]) -> dict[str, Any]:
        tokens = [output.token for output in outputs]
        if self._is_chat:
            told = [self._scored(t.token_id, t.logprob) | {"top_logprobs": self._alternatives(t.top)} for t in tokens]
            return {"content": told}
        tops = [{one["token"]: one["logprob"] for one in reversed(self._alternatives(t.top))} for t in tokens]
        scored = [self._scored(t.token_id, t.logprob) for t in tokens]
        return {
            "tokens": [one["token"] for one in scored],
            "token_logprobs": [one["logprob"] for one in scored],
            "top_logprobs": tops,  # made from the worst to the best, which stays where two tokens have one text
        }

    def _alternatives(self, top: tuple[tuple[int, float], ...]) -> list[dict[str, Any]]:
        return [self._scored(token_id, logprob) for token_id, logprob in top]

    def _scored(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._service.engine.codec.token_text(token_id)
        bounded = max(logprob, _LEAST_LOGPROB) if math.isfinite(logprob) else _LEAST_LOGPROB
        return {"token": text, "logprob": bounded, "bytes": None if _NO_CHARACTER in text else list(text.encode())}

    def _usage(self) -> dict[str, Any]:
        prompt = sum(seq.num_prompt_tokens for seq in self._call.sequences)
        generated = sum(seq.num_generated for seq in self._call.sequences)
        cached = {"cached_tokens": sum(seq.num_cached_tokens for seq in self._call.sequences)}
        counts = {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
        return counts | {"prompt_tokens_details": cached}


# Endpoints.


async def _read(request: Request) -> bytes:
    """The body, if it is not too long; all of it is read in any case."""
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= _MAX_BODY:
            body += piece
    if size > _MAX_BODY:
        raise _ApiError(413, f"the body has {size} bytes, and at most {_MAX_BODY} are read")
    return bytes(body)


async def _answer(service: _Service, request: Request, kind: type[_ChatBody] | type[_CompletionBody]) -> Response:
    """A call is open from when its body is whole until its answer is."""
    arrival = time.perf_counter()
    service.refuse_if_closed()
    try:
        data = await _read(request)
    except ClientDisconnect:
        return Response(status_code=400)
    service.num_open += 1
    try:
        body = _parse(kind, data)
        try:
            prompts = await asyncio.to_thread(_prepare, service.engine, body)
        except ValueError as error:
            raise _refusal(error, body) from None
        call = _Call(prompts, arrival, asyncio.get_running_loop())
        service.submit(call)
        return _Answer(service, call, body)
    except BaseException:
        service.num_open -= 1
        raise


def create_app(engine: LLMEngine, *, api_key: str | None = None) -> FastAPI:
    """The application around one engine; app.state.service has `draining` and `num_open`."""
    service = _Service(engine)
    started = int(time.time())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(title=ENGINE_NAME, lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.state.service = service

    def check_key(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("latin-1")
        if api_key is not None and not hmac.compare_digest(given, f"Bearer {api_key}".encode()):
            raise _ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Response:
        check_key(request)
        return await _answer(service, request, _ChatBody)

    @app.post("/v1/completions", response_model=None)
    async def complete(request: Request) -> Response:
        check_key(request)
        return await _answer(service, request, _CompletionBody)

    @app.get("/v1/models", response_model=None)
    async def models(request: Request) -> Response:
        check_key(request)
        model = {"id": ENGINE_NAME, "object": "model", "created": started, "owned_by": "metainfer"}
        return _json({"object": "list", "data": [model]})

    @app.get("/health", response_model=None)
    async def health() -> Response:
        if service.failure is not None:
            raise _ApiError(503, service.failure)
        return _json({"status": "ok"})

    @app.get("/ready", response_model=None)
    async def ready() -> Response:
        service.refuse_if_closed()
        return _json({"status": "ready"})

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(_ApiError)
    async def told(request: Request, error: _ApiError) -> Response:
        return _json(error.body, error.status)

    @app.exception_handler(HTTPException)
    async def by_status(request: Request, error: HTTPException) -> Response:
        return _json(_ApiError(error.status_code, str(error.detail)).body, error.status_code)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        return _json(_ApiError(500, f"{type(error).__name__}: {error}").body, 500)

    return app
