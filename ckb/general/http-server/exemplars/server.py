"""The OpenAI-compatible HTTP server: one thread owns the engine, the event loop the connections."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from queue import SimpleQueue
from typing import Any, ClassVar, Literal

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .config import ENGINE_NAME, MAX_MODEL_LEN
from .facts import S
from .units import LLMEngine, SampledToken, SamplingParams, Sequence, StepOutput, TextCodec

_LOG = logging.getLogger("uvicorn.error")
_MAX_BODY_BYTES = (1 << 20) + 128 * MAX_MODEL_LEN  # ample for the longest prompt
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SAMPLING_FIELDS = {"temperature", "top_p", "top_k", "ignore_eos", "seed"}
_Prompt = tuple[list[int], SamplingParams]


def create_app(engine: LLMEngine, *, api_key: str | None = None) -> FastAPI:
    """The application around `engine`; with `api_key`, `/v1` asks for it as a bearer token."""
    service = _Service(engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.stop()

    def admission(request: Request) -> None:
        sent = request.headers.get("authorization", "").encode("latin-1")
        if api_key is not None and not hmac.compare_digest(sent, f"Bearer {api_key}".encode()):
            raise _ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        if service.draining:
            raise _ApiError(503, "the server is shutting down")

    app = FastAPI(title=ENGINE_NAME, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(_cap_bodies)
    for kind in (_ApiError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _on_error)
    if S.chat:

        @app.post("/v1/chat/completions", dependencies=[Depends(admission)])
        async def chat_completions(request: Request, body: _ChatBody) -> Response:
            return await _answer(service, request, body)

    if S.completions:

        @app.post("/v1/completions", dependencies=[Depends(admission)])
        async def completions(request: Request, body: _CompletionBody) -> Response:
            return await _answer(service, request, body)

    @app.get("/v1/models", dependencies=[Depends(admission)])
    async def models() -> Response:
        model = {"id": ENGINE_NAME, "object": "model", "created": 0, "owned_by": "engine"}
        return JSONResponse({"object": "list", "data": [model | {"max_model_len": MAX_MODEL_LEN}]})

    @app.get("/health")
    async def health() -> Response:
        status = service.failure or "ok"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @app.get("/ready")
    async def ready() -> Response:
        status = service.failure or ("draining" if service.draining else "ok")
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type="text/plain")

    return app


class _StrictModel(BaseModel):
    """What a client sends: a field that is not here is refused by name, no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


if S.streaming:

    class _StreamOptions(_StrictModel):
        include_usage: bool = False


class _Body(_StrictModel):
    """What both endpoints take, and how they word their answers."""

    kind: ClassVar[str]
    default_max_tokens: ClassVar[int]
    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    ignore_eos: bool | None = None
    n: Literal[1] | None = None  # this and the next two: only as far as they ask for nothing
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    if S.seed:
        seed: int | None = None
    if S.stop:
        stop: str | list[str] | None = None
    if S.streaming:
        chunk_kind: ClassVar[str]
        stream: bool | None = None
        stream_options: _StreamOptions | None = None
    else:
        stream: Literal[False] | None = None
    if S.logprobs:
        logprobs: int | None = None

        def num_logprobs(self) -> int | None:
            """How many alternatives to report for each token; None is no log-probabilities."""
            return self.logprobs

    def prompts(self, codec: TextCodec) -> list[_Prompt]:
        """What to run. Raises ValueError `field: why`."""
        raise NotImplementedError

    def choice(self, codec: TextCodec, place: int, outputs: list[StepOutput]) -> dict[str, Any]:
        """What an answer says of these outputs of the sequence at `place`."""
        raise NotImplementedError

    def sampling_params(self, num_prompt_tokens: int) -> SamplingParams:
        """Parameters for one prompt; they check their ranges. Raises ValueError `field: why`."""
        given = self.model_dump(include=_SAMPLING_FIELDS, exclude_none=True)
        if S.stop:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if S.logprobs:
            given["logprobs"] = self.num_logprobs()
        if S.streaming:
            if self.stream_options and not self.stream:
                raise ValueError("stream_options: allowed only with stream: true")
        room = max(1, MAX_MODEL_LEN - num_prompt_tokens)
        default = min(self.default_max_tokens, room)
        given["max_tokens"] = default if self.max_tokens is None else self.max_tokens
        return SamplingParams(**given)


if S.chat:

    class _Message(_StrictModel):
        role: Literal["system", "user", "assistant"]
        content: str

    class _ChatBody(_Body):
        kind = "chat.completion"
        default_max_tokens = MAX_MODEL_LEN
        messages: list[_Message] = Field(min_length=1)
        max_tokens: int | None = Field(
            None, validation_alias=AliasChoices("max_completion_tokens", "max_tokens")
        )
        if S.streaming:
            chunk_kind = "chat.completion.chunk"
        if S.logprobs:
            logprobs: bool | None = None
            top_logprobs: int | None = None

            def num_logprobs(self) -> int | None:
                if self.top_logprobs is not None and not self.logprobs:
                    raise ValueError("top_logprobs: allowed only with logprobs: true")
                return (self.top_logprobs or 0) if self.logprobs else None

        def prompts(self, codec: TextCodec) -> list[_Prompt]:
            token_ids = codec.encode_chat([message.model_dump() for message in self.messages])
            return [(token_ids, self.sampling_params(len(token_ids)))]

        def choice(self, codec: TextCodec, place: int, outputs: list[StepOutput]) -> dict[str, Any]:
            text = "".join(output.text for output in outputs)
            choice: dict[str, Any] = {
                "index": place,
                "message": {"role": "assistant", "content": text},
                "finish_reason": outputs[-1].finish_reason,
            }
            if S.logprobs:
                tokens = [_chat_logprobs(codec, output.token) for output in outputs]
                choice["logprobs"] = {"content": tokens} if self.logprobs else None
            return choice


if S.completions:

    class _CompletionBody(_Body):
        kind = "text_completion"
        default_max_tokens = 16
        prompt: str | list[str] | list[int] | list[list[int]]
        if S.streaming:
            chunk_kind = "text_completion"

        def prompts(self, codec: TextCodec) -> list[_Prompt]:
            one = isinstance(self.prompt, str) or all(isinstance(part, int) for part in self.prompt)
            prompts: list[Any] = [self.prompt] if one else list(self.prompt)
            ids = [codec.encode(part) if isinstance(part, str) else part for part in prompts]
            return [(token_ids, self.sampling_params(len(token_ids))) for token_ids in ids]

        def choice(self, codec: TextCodec, place: int, outputs: list[StepOutput]) -> dict[str, Any]:
            choice: dict[str, Any] = {
                "index": place,
                "text": "".join(output.text for output in outputs),
                "finish_reason": outputs[-1].finish_reason,
            }
            if S.logprobs:
                tokens = [output.token for output in outputs]
                told = self.logprobs is not None
                choice["logprobs"] = _completion_logprobs(codec, tokens) if told else None
            return choice


if S.logprobs:

    def _chat_logprobs(codec: TextCodec, token: SampledToken) -> dict[str, Any]:
        def entry(token_id: int, logprob: float) -> dict[str, Any]:
            text = codec.token_text(token_id)
            utf8 = None if "\ufffd" in text else list(text.encode())  # part of a character has none
            return {"token": text, "logprob": _finite(logprob), "bytes": utf8}

        chosen = entry(token.token_id, token.logprob)
        return chosen | {"top_logprobs": [entry(*alternative) for alternative in token.top]}

    def _completion_logprobs(codec: TextCodec, tokens: list[SampledToken]) -> dict[str, Any]:
        tops = [{codec.token_text(i): _finite(p) for i, p in token.top} for token in tokens]
        return {
            "tokens": [codec.token_text(token.token_id) for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": tops,
        }

    def _finite(logprob: float) -> float:
        return max(logprob, -9999.0)  # JSON has no infinity


class _Service(threading.Thread):
    """Owns the engine: whoever wants something of it posts an action, which is run between steps."""

    def __init__(self, engine: LLMEngine) -> None:
        super().__init__(name="engine", daemon=True)
        self.engine = engine
        self.metrics = _Metrics(engine)
        self.failure = ""
        self.draining = False
        self.open_calls: set[_Call] = set()
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._calls: dict[int, _Call] = {}  # by seq_id
        self._stopped = False

    def run(self) -> None:
        while not self._stopped:
            if self.engine.has_work and self._inbox.empty():
                self._step()
            else:
                self._inbox.get()()

    def stop(self) -> None:
        self._inbox.put(lambda: setattr(self, "_stopped", True))
        self.join()

    def post(self, action: Callable[[], object]) -> None:
        self._inbox.put(action)

    def admit(self, call: _Call, prompts: list[_Prompt]) -> None:
        try:
            if self.failure:
                raise _ApiError(503, self.failure)
            for token_ids, params in prompts:
                seq = self.engine.add_request(token_ids, params)
                call.sequences.append(seq)
                self._calls[seq.seq_id] = call
            call.tell(None)
        except Exception as refusal:
            self.drop(call)
            call.tell(refusal)

    def drop(self, call: _Call) -> None:
        for seq in call.sequences:
            if self._calls.pop(seq.seq_id, None):
                self.engine.abort(seq.seq_id)
                self.metrics.requests.labels("abort").inc()

    def _step(self) -> None:
        began_s = time.perf_counter()
        try:
            outputs = self.engine.step()
        except Exception as error:  # nobody knows what the cache holds now: fail all, and say so
            _LOG.exception("the engine failed")
            self.failure = f"the engine failed: {type(error).__name__}: {error}"
            for call in set(self._calls.values()):
                self.drop(call)
                call.tell(_ApiError(500, self.failure))
            return
        for output in outputs:
            call = self._calls[output.seq.seq_id]
            self.metrics.observe(output, began_s, call.arrived_s)
            if output.finish_reason:
                del self._calls[output.seq.seq_id]
            call.tell(output)


class _Call:
    """One HTTP call: a sequence per prompt, and what the engine thread tells the event loop of them."""

    def __init__(self, service: _Service, request: Request) -> None:
        self.sequences: list[Sequence] = []
        self.arrived_s = time.perf_counter()
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[StepOutput | Exception | None] = asyncio.Queue()
        self._watcher = asyncio.create_task(self._end_when_gone(request))

    def tell(self, event: StepOutput | Exception | None) -> None:
        """From the engine thread: a token, the error that ends the call, or None: it is admitted."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def open(self, prompts: list[_Prompt]) -> None:
        """Queue all prompts, or none. Raises ValueError `field: why` if the engine refuses one."""
        self._service.open_calls.add(self)
        self._service.post(lambda: self._service.admit(self, prompts))
        if isinstance(refusal := await self._events.get(), Exception):
            self.close()
            raise refusal

    async def outputs(self) -> AsyncIterator[tuple[int, StepOutput]]:
        """Every token as it comes, with the place of its prompt. Left early, all is aborted."""
        running = len(self.sequences)
        try:
            while running and (event := await self._events.get()):
                if isinstance(event, Exception):
                    raise event
                running -= event.finish_reason is not None
                yield self.sequences.index(event.seq), event
        finally:
            self.close()

    def close(self) -> None:
        self._watcher.cancel()
        self._service.open_calls.discard(self)
        self._service.post(lambda: self._service.drop(self))

    async def _end_when_gone(self, request: Request) -> None:
        """Notice at once that the client has gone, be it in the middle of a long prompt."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.tell(_ApiError(499, "the client went away"))
        self.close()

    def usage(self) -> dict[str, Any]:
        prompt = sum(seq.num_prompt_tokens for seq in self.sequences)
        completion = sum(seq.num_generated for seq in self.sequences)
        cached = sum(seq.num_cached_tokens for seq in self.sequences)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


class _Metrics:
    """What `/metrics` shows, in a registry of this application's own."""

    def __init__(self, engine: LLMEngine) -> None:
        self.registry = CollectorRegistry()
        blocks, scheduler = engine.block_manager, engine.scheduler
        gauges: dict[str, Callable[[], float]] = {
            "kv_blocks_free": lambda: blocks.num_free,
            "kv_blocks_cached": lambda: blocks.num_cached,
            "kv_blocks_used": lambda: blocks.num_used,
            "kv_blocks_total": lambda: blocks.num_blocks,
            "requests_running": lambda: len(scheduler.running),
            "requests_waiting": lambda: len(scheduler.waiting),
        }
        for name, read in gauges.items():
            Gauge(name, name.replace("_", " "), registry=self.registry).set_function(read)
        self.requests = Counter("requests", "ended, by reason", ["reason"], registry=self.registry)
        self.tokens = Counter("tokens", "of ended requests", ["kind"], registry=self.registry)
        self.ttft = self._seconds("time_to_first_token", "from arrival to the first token")
        self.tpot = self._seconds("time_per_output_token", "of the step, per token after the first")

    def _seconds(self, name: str, text: str) -> Histogram:
        return Histogram(f"{name}_seconds", text, buckets=_SECONDS, registry=self.registry)

    def observe(self, output: StepOutput, step_began_s: float, arrived_s: float) -> None:
        seq, now_s = output.seq, time.perf_counter()
        if seq.num_generated == 1:
            self.ttft.observe(now_s - arrived_s)
        else:
            self.tpot.observe(now_s - step_began_s)
        if output.finish_reason:
            self.requests.labels(output.finish_reason.value).inc()
            self.tokens.labels("prompt").inc(seq.num_prompt_tokens)
            self.tokens.labels("cached").inc(seq.num_cached_tokens)
            self.tokens.labels("generated").inc(seq.num_generated)


async def _answer(service: _Service, request: Request, body: _Body) -> Response:
    if body.model != ENGINE_NAME:
        raise _ApiError(404, f"model: only {ENGINE_NAME!r} is served here", code="model_not_found")
    codec = service.engine.codec
    try:
        prompts = await run_in_threadpool(body.prompts, codec)
        call = _Call(service, request)
        await call.open(prompts)
    except ValueError as error:
        raise _ApiError(400, str(error)) from error
    if S.streaming:
        if body.stream:
            return StreamingResponse(_chunks(body, codec, call), media_type="text/event-stream")
    outputs: list[list[StepOutput]] = [[] for _ in call.sequences]
    async for place, output in call.outputs():
        outputs[place].append(output)
    choices = [body.choice(codec, place, told) for place, told in enumerate(outputs)]
    return JSONResponse(_head(body.kind) | {"choices": choices, "usage": call.usage()})


def _head(kind: str) -> dict[str, Any]:
    answer_id = f"{kind.split('.')[0]}-{uuid.uuid4().hex}"
    return {"id": answer_id, "object": kind, "created": int(time.time()), "model": ENGINE_NAME}


if S.streaming:

    async def _chunks(body: _Body, codec: TextCodec, call: _Call) -> AsyncIterator[str]:
        """Server-sent events: a chunk for each piece of text, the usage if asked for, `[DONE]`."""
        head = _head(body.chunk_kind)
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        if with_usage:
            head["usage"] = None
        begun = False
        try:
            async for place, output in call.outputs():
                worth_it = bool(output.text or output.finish_reason)
                if S.logprobs:
                    worth_it = worth_it or output.seq.params.logprobs is not None
                if not worth_it:
                    continue
                choice = body.choice(codec, place, [output])
                if S.chat:
                    if message := choice.pop("message", None):
                        # Clients join the pieces of every field, so the role may be told only once.
                        choice["delta"] = {"content": message["content"]} if begun else message
                begun = True
                yield _event(head | {"choices": [choice]})
            if with_usage:
                yield _event(head | {"choices": [], "usage": call.usage()})
            yield "data: [DONE]\n\n"
        except _ApiError as error:  # too late for a status
            yield _event(error.body)

    def _event(payload: dict[str, Any]) -> str:
        return f"data: {json.dumps(payload)}\n\n"


class _ApiError(Exception):
    """A refusal or a failure, in the format of the API; a message `field: why` names the field."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        field = message.partition(": ")[0]
        self.body = {
            "error": {
                "message": message,
                "type": "invalid_request_error" if status < 500 else "server_error",
                "param": field if " " not in field else None,
                "code": code,
            }
        }


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        detail = error.errors()[0]
        field = ".".join(str(part) for part in detail["loc"][1:])
        why = "is not supported" if detail["type"] == "extra_forbidden" else detail["msg"]
        error = _ApiError(400, f"{field}: {why}")
    elif isinstance(error, HTTPException):
        error = _ApiError(error.status_code, str(error.detail))
    elif not isinstance(error, _ApiError):
        error = _ApiError(500, "the server failed; its log says how")
    return JSONResponse(error.body, error.status)


def _cap_bodies(app: ASGIApp) -> ASGIApp:
    """Around `app`: a body that is too large is thrown away as it comes, and answered by 413."""

    async def capped(scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def receive_part() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            while size > _MAX_BODY_BYTES and message.get("more_body"):
                message = await receive()
            if size > _MAX_BODY_BYTES:
                raise HTTPException(413, f"the body may have {_MAX_BODY_BYTES:,} bytes")
            return message

        await app(scope, receive_part, send)

    return capped
