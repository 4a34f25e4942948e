"""The OpenAI-compatible HTTP server."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import uuid
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any, ClassVar, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from .config import ENGINE_NAME, MAX_MODEL_LEN
from .engine import LLMEngine, StepOutput
from .sequence import SamplingParams, Sequence
from .text import TextCodec

_LOG = logging.getLogger("uvicorn.error")
_MAX_BODY_BYTES = (1 << 20) + 128 * MAX_MODEL_LEN  # ample for the longest prompt
_MAX_PROMPTS = 256  # of one call
_SAMPLING_FIELDS = {"temperature", "top_p", "top_k", "ignore_eos", "seed"}
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # of histograms
_Prompt = tuple[list[int], SamplingParams]
_Zero = Annotated[float, Field(ge=0, le=0)]


def create_app(engine: LLMEngine, *, api_key: str | None = None) -> FastAPI:
    """The application around `engine`; with `api_key`, `/v1` asks for it as a bearer token."""
    service = _Service(engine, api_key)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(service.run())
        yield
        task.cancel()

    app = FastAPI(title=ENGINE_NAME, lifespan=lifespan, openapi_url=None)
    app.state.service = service
    for kind in (_ApiError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _on_error)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await _answer(service, request, _ChatBody)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _answer(service, request, _CompletionBody)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        service.check_key(request)
        model = {"id": ENGINE_NAME, "object": "model", "created": service.started, "owned_by": "engine"}
        return JSONResponse({"object": "list", "data": [model | {"max_model_len": MAX_MODEL_LEN}]})

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": service.failure or "ok"}, 503 if service.failure else 200)

    @app.get("/ready")
    async def ready() -> Response:
        trouble = service.failure or ("draining" if service.draining else "")
        return JSONResponse({"status": trouble or "ready"}, 503 if trouble else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type="text/plain")

    return app


class _StrictModel(BaseModel):
    """What a client sends: a field that is not here is refused by name, no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class _StreamOptions(_StrictModel):
    include_usage: bool = False


class _Body(_StrictModel):
    """What both endpoints take; each adds its prompt and how it words a choice."""

    object: ClassVar[str]
    id_prefix: ClassVar[str]
    default_max_tokens: ClassVar[int]
    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None  # this and the next two ask for nothing
    frequency_penalty: _Zero | None = None
    presence_penalty: _Zero | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    chunk_object: ClassVar[str]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: int | None = None

    def num_logprobs(self) -> int | None:
        """How many alternatives to report for each token; None is no log-probabilities."""
        return self.logprobs

    def limit(self) -> int | None:
        return self.max_tokens

    def sent_as(self, field: str) -> str:
        """The client's name of what the engine refuses as `field`."""
        return field

    @abstractmethod
    def prompts(self, codec: TextCodec) -> list[list[int]]:
        """Token ids of each prompt. Raises ValueError `field: why`."""

    @abstractmethod
    def choice(self, codec: TextCodec, outputs: list[StepOutput]) -> dict[str, Any]:
        """What an answer says of `outputs` of one sequence."""

    def sampling_params(self, num_prompt_tokens: int) -> SamplingParams:
        """Parameters for one prompt, which check their ranges. Raises ValueError `field: why`."""
        given = self.model_dump(include=_SAMPLING_FIELDS, exclude_none=True)
        given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        given["logprobs"] = self.num_logprobs()
        if self.stream_options and not self.stream:
            raise ValueError("stream_options: allowed only with stream: true")
        default = min(self.default_max_tokens, max(1, MAX_MODEL_LEN - num_prompt_tokens))
        limit = self.limit()
        return SamplingParams(default if limit is None else limit, **given)


class _TextPart(_StrictModel):
    type: Literal["text"]
    text: str


class _Message(_StrictModel):
    role: Literal["system", "user", "assistant"]
    content: str | list[_TextPart]

    def flat(self) -> dict[str, str]:
        """As chat templates know it, with the parts of the text joined."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return {"role": self.role, "content": "".join(parts)}


class _ChatBody(_Body):
    object = "chat.completion"
    id_prefix = "chatcmpl"
    default_max_tokens = MAX_MODEL_LEN
    messages: list[_Message] = Field(min_length=1)
    max_completion_tokens: int | None = None  # the newer name of max_tokens
    chunk_object = "chat.completion.chunk"
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def num_logprobs(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: allowed only with logprobs: true")
        return (self.top_logprobs or 0) if self.logprobs else None

    def limit(self) -> int | None:
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer

    def sent_as(self, field: str) -> str:
        newer = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        names = {"prompt": "messages", "logprobs": "top_logprobs", "max_tokens": newer}
        return names.get(field, field)

    def prompts(self, codec: TextCodec) -> list[list[int]]:
        return [codec.encode_chat([message.flat() for message in self.messages])]

    def choice(self, codec: TextCodec, outputs: list[StepOutput]) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(output.text for output in outputs)}
        choice: dict[str, Any] = {"message": message, "finish_reason": outputs[-1].finish_reason}
        choice["logprobs"] = _chat_logprobs(codec, outputs) if self.logprobs else None
        return choice


class _CompletionBody(_Body):
    object = "text_completion"
    id_prefix = "cmpl"
    default_max_tokens = 16
    prompt: str | list[str] | list[int] | list[list[int]]
    chunk_object = "text_completion"

    def prompts(self, codec: TextCodec) -> list[list[int]]:
        one = isinstance(self.prompt, str) or all(isinstance(part, int) for part in self.prompt)
        parts: list[Any] = [self.prompt] if one else list(self.prompt)
        if len(parts) > _MAX_PROMPTS:
            raise ValueError(f"prompt: at most {_MAX_PROMPTS} prompts at once, not {len(parts)}")
        return [codec.encode(part) if isinstance(part, str) else part for part in parts]

    def choice(self, codec: TextCodec, outputs: list[StepOutput]) -> dict[str, Any]:
        text = "".join(output.text for output in outputs)
        choice: dict[str, Any] = {"text": text, "finish_reason": outputs[-1].finish_reason}
        wanted = self.logprobs is not None
        choice["logprobs"] = _completion_logprobs(codec, outputs) if wanted else None
        return choice


def _chat_logprobs(codec: TextCodec, outputs: list[StepOutput]) -> dict[str, Any]:
    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = codec.token_text(token_id)
        utf8 = None if "\ufffd" in text else list(text.encode())  # part of a character has none
        return {"token": text, "logprob": _finite(logprob), "bytes": utf8}

    tokens = [output.token for output in outputs]
    tops = [{"top_logprobs": [entry(*pair) for pair in token.top]} for token in tokens]
    chosen = [entry(token.token_id, token.logprob) for token in tokens]
    return {"content": [one | top for one, top in zip(chosen, tops, strict=True)]}


def _completion_logprobs(codec: TextCodec, outputs: list[StepOutput]) -> dict[str, Any]:
    tokens = [output.token for output in outputs]
    return {
        "tokens": [codec.token_text(token.token_id) for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [{codec.token_text(i): _finite(logprob) for i, logprob in token.top} for token in tokens],
    }


def _finite(logprob: float) -> float:
    return max(logprob, -9999.0)  # JSON has no infinity


class _Service:
    """Owns the engine: steps it in a thread, and does what others want of it between two steps."""

    def __init__(self, engine: LLMEngine, api_key: str | None) -> None:
        self.engine = engine
        self.metrics = _Metrics(engine)
        self.started = int(time.time())
        self.failure = ""
        self.draining = False
        self._bearer = None if api_key is None else f"Bearer {api_key}".encode()
        self._inbox: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
        self._open: set[_Call] = set()
        self._call_of: dict[int, _Call] = {}  # by seq_id
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")

    @property
    def num_open(self) -> int:
        """Calls under way."""
        return len(self._open)

    def check_key(self, request: Request) -> None:
        sent = request.headers.get("authorization", "").encode("latin-1")  # as it was sent
        if self._bearer is not None and not hmac.compare_digest(sent, self._bearer):
            raise _ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    async def run(self) -> None:
        while True:
            try:
                if self.engine.has_work and self._inbox.empty():
                    await self._step()
                else:
                    (await self._inbox.get())()
            except Exception as error:  # nobody knows what the cache holds now: fail all, and say so
                _LOG.exception("the engine failed")
                self.failure = f"the engine failed: {type(error).__name__}: {error}"
                for call in self._open:
                    self._drop(call)
                    call.events.put_nowait(_ApiError(500, self.failure))

    async def outputs(self, request: Request, prompts: list[_Prompt]) -> AsyncIterator[tuple[int, StepOutput]]:
        """Every token as it comes, with the place of its prompt; left early, all is aborted."""
        call = _Call()
        watcher = asyncio.create_task(self._drop_when_gone(request, call))
        self._open.add(call)
        self._inbox.put_nowait(lambda: self._admit(call, prompts))
        running = len(prompts)
        try:
            while running:
                event = await call.events.get()
                if isinstance(event, Exception):
                    raise event
                running -= event.finish_reason is not None
                yield call.sequences.index(event.seq), event
        finally:
            watcher.cancel()
            self._open.discard(call)
            self._inbox.put_nowait(lambda: self._drop(call))

    async def _step(self) -> None:
        began_s = time.perf_counter()
        outputs = await asyncio.get_running_loop().run_in_executor(self._thread, self.engine.step)
        for output in outputs:
            call = self._call_of[output.seq.seq_id]
            self.metrics.observe(output, began_s, call.arrived_s)
            if output.finish_reason:
                del self._call_of[output.seq.seq_id]
            call.events.put_nowait(output)

    def _admit(self, call: _Call, prompts: list[_Prompt]) -> None:
        for token_ids, params in prompts:
            call.sequences.append(self.engine.add_request(token_ids, params))
            self._call_of[call.sequences[-1].seq_id] = call

    def _drop(self, call: _Call) -> None:
        for seq in call.sequences:
            if self._call_of.pop(seq.seq_id, None):
                self.engine.abort(seq.seq_id)
                self.metrics.requests.labels("abort").inc()

    async def _drop_when_gone(self, request: Request, call: _Call) -> None:
        """Notice a client that goes away, be it in the middle of a long prompt."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._inbox.put_nowait(lambda: self._drop(call))
        call.events.put_nowait(_ApiError(499, "the client went away"))


class _Call:
    """One HTTP call: a sequence per prompt, and what the service has to tell of them."""

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.events: asyncio.Queue[StepOutput | Exception] = asyncio.Queue()
        self.arrived_s = time.perf_counter()


class _Metrics:
    """What `/metrics` shows, in a registry of this application's own."""

    def __init__(self, engine: LLMEngine) -> None:
        registry = self.registry = CollectorRegistry()
        blocks, scheduler = engine.block_manager, engine.scheduler
        for name, read in {
            "kv_blocks_free": lambda: blocks.num_free,
            "kv_blocks_cached": lambda: blocks.num_cached,
            "kv_blocks_used": lambda: blocks.num_used,
            "kv_blocks_total": lambda: blocks.num_blocks,
            "requests_running": lambda: len(scheduler.running),
            "requests_waiting": lambda: len(scheduler.waiting),
        }.items():
            Gauge(name, name.replace("_", " "), registry=registry).set_function(read)
        self.requests = Counter("requests", "ended, by reason", ["reason"], registry=registry)
        self.tokens = Counter("tokens", "of ended requests", ["kind"], registry=registry)
        ttft, tpot = "time_to_first_token_seconds", "time_per_output_token_seconds"
        self.ttft = Histogram(ttft, "from arrival", registry=registry, buckets=_SECONDS)
        self.tpot = Histogram(tpot, "of its step", registry=registry, buckets=_SECONDS)

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


async def _answer(service: _Service, request: Request, kind: type[_Body]) -> Response:
    service.check_key(request)
    if service.draining or service.failure:
        raise _ApiError(503, service.failure or "the server is shutting down")
    body = _parse(kind, await _read(request))
    codec = service.engine.codec
    try:
        token_ids = await run_in_threadpool(body.prompts, codec)
        prompts = [(prompt, body.sampling_params(len(prompt))) for prompt in token_ids]
        for prompt, params in prompts:
            service.engine.check_request(prompt, params)
    except ValueError as error:
        field, _, why = str(error).partition(": ")
        raise _ApiError(400, why, body.sent_as(field)) from error
    outputs = service.outputs(request, prompts)
    head = {"id": f"{kind.id_prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": ENGINE_NAME}
    if body.stream:
        return StreamingResponse(_chunks(head, body, codec, outputs), media_type="text/event-stream")
    made: list[list[StepOutput]] = [[] for _ in prompts]
    async for place, output in outputs:
        made[place].append(output)
    head["object"] = kind.object
    head["choices"] = [{"index": i} | body.choice(codec, made[i]) for i in range(len(made))]
    return JSONResponse(head | {"usage": _usage([own[-1].seq for own in made])})


async def _read(request: Request) -> bytes:
    """The body; what is too large is thrown away as it comes."""
    body = bytearray()
    async for part in request.stream():
        if len(body) <= _MAX_BODY_BYTES:
            body += part
    if len(body) > _MAX_BODY_BYTES:
        raise _ApiError(413, f"the body may have {_MAX_BODY_BYTES:,} bytes")
    return bytes(body)


def _parse(kind: type[_Body], text: bytes) -> _Body:
    try:
        body = kind.model_validate_json(text)
    except ValidationError as error:
        detail = error.errors(include_input=False)[0]
        unknown = detail["type"] == "extra_forbidden"
        place, why = detail["loc"], "is not supported" if unknown else detail["msg"]
        if "str" in place[1:] and not unknown:  # pydantic names the first of a field's several forms
            place, why = place[: place.index("str", 1)], "has none of the forms that are accepted"
        raise _ApiError(400, why, ".".join(map(str, place)) or "body") from error
    if body.model != ENGINE_NAME:
        raise _ApiError(404, f"only {ENGINE_NAME!r} is served here", "model", "model_not_found")
    return body


def _usage(sequences: list[Sequence]) -> dict[str, Any]:
    prompt = sum(seq.num_prompt_tokens for seq in sequences)
    completion = sum(seq.num_generated for seq in sequences)
    cached = {"cached_tokens": sum(seq.num_cached_tokens for seq in sequences)}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return counts | {"total_tokens": prompt + completion, "prompt_tokens_details": cached}


async def _chunks(
    head: dict[str, Any],
    body: _Body,
    codec: TextCodec,
    outputs: AsyncIterator[tuple[int, StepOutput]],
) -> AsyncIterator[str]:
    """Server-sent events: a chunk for each piece of text, the usage if asked for, `[DONE]`."""
    head["object"] = body.chunk_object
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    if with_usage:
        head["usage"] = None
    ended: list[Sequence] = []
    begun = False
    try:
        async for place, output in outputs:
            silent = not output.text and output.finish_reason is None
            silent = silent and output.seq.params.logprobs is None
            if silent:
                continue
            if output.finish_reason:
                ended.append(output.seq)
            choice = {"index": place} | body.choice(codec, [output])
            if "message" in choice:
                choice["delta"] = choice.pop("message")
                if begun:  # clients join what comes for a field, so the role is told only once
                    del choice["delta"]["role"]
                begun = True
            yield _event(head | {"choices": [choice]})
        if with_usage:
            yield _event(head | {"choices": [], "usage": _usage(ended)})
        yield "data: [DONE]\n\n"
    except _ApiError as error:  # too late for a status
        yield _event(error.body)


def _event(payload: dict[str, Any]) -> str:
    return f"data: {json.dumps(payload)}\n\n"


class _ApiError(Exception):
    """A refusal or a failure, in the format of the API; `field` is the part of the request that is wrong."""

    def __init__(self, status: int, why: str, field: str | None = None, code: str | None = None) -> None:
        super().__init__(why)
        self.status = status
        message = why if field is None else f"{field}: {why}"
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": field, "code": code}}


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = _ApiError(error.status_code, str(error.detail))
    elif isinstance(error, ClientDisconnect):
        error = _ApiError(499, "the client went away")
    elif not isinstance(error, _ApiError):
        error = _ApiError(500, "the server failed; its log says how")
    return JSONResponse(error.body, error.status)
