"""A client of any OpenAI-compatible endpoint: streams, bounds what comes, retries what may be, books every call."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tenacity

from metainfer.agents.address import read_address
from metainfer.agents.budget import BudgetError, Ledger, Purpose
from metainfer.agents.dialect import Dialect
from metainfer.agents.messages import ChatRequest, Reply, ToolCall, Usage, estimate_tokens, mended
from metainfer.agents.replies import ReplyStore
from metainfer.agents.transcript import Transcript, Turn, redact, spellings
from metainfer.errors import InputError, MachineError

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionChunk

_LONGEST_WAIT_S = 60.0
_BYTES_PER_TOKEN = 16
"""More than any token has on average; what comes beyond this times max_tokens is not read."""


class EndpointError(MachineError):
    """The endpoint cannot be used: it refuses, or it fails again and again. The message says which and where."""


class AnswerError(EndpointError):
    """The endpoint works, but not with this question: refused, flooded, filtered. Another one may fare better."""


class _TransientError(Exception):
    """May go better the next time; `usage` is what it may have cost."""

    def __init__(self, message: str, usage: Usage | None = None, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.usage = usage
        self.wait_s = wait_s


class _FinalError(Exception):
    """Would fail again. With `usage`, an answer came and was paid for."""

    def __init__(self, message: str, usage: Usage | None = None, *, is_about_question: bool = False) -> None:
        super().__init__(message)
        self.usage = usage
        self.is_about_question = is_about_question or usage is not None


@dataclass(frozen=True)
class Endpoint:
    """Where the model is, and how patient to be with it."""

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)
    connect_s: float = 10.0
    idle_s: float = 300.0
    """Longest wait for the first token, and from one to the next."""
    total_s: float = 1800.0
    attempts: int = 5
    first_wait_s: float = 1.0
    """Before the second attempt; doubles from there, unless the endpoint says how long."""

    @property
    def shown_url(self) -> str:
        """The address as messages may have it. InputError if it is none."""
        return read_address(self.base_url).shown

    @property
    def secrets(self) -> list[str]:
        """What may be written nowhere, however the endpoint spells it."""
        return spellings([self.api_key, read_address(self.base_url).password])


class ChatClient:
    """Asks one endpoint. Use it inside one event loop, and close it there."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        ledger: Ledger,
        replies: ReplyStore,
        transcript: Transcript,
        concurrency: int = 4,
    ) -> None:
        self.endpoint = endpoint
        self.ledger = ledger
        self.replies = replies
        self.transcript = transcript
        self.dialect = Dialect()
        self._places = asyncio.Semaphore(concurrency)
        self._openai = _connect(endpoint)

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._openai.close()

    async def list_models(self) -> dict[str, int | None]:
        """Ids that the endpoint lists, with their context in tokens where it says so. Empty if it does not list any.

        EndpointError if it cannot be reached, or refuses the key.
        """
        import httpx2
        import openai

        try:
            async with asyncio.timeout(2 * self.endpoint.connect_s):
                page = await self._openai.models.list(timeout=self.endpoint.connect_s)
            return {mended(model.id): _context_tokens(model.model_extra or {}) for model in page.data or []}
        except (openai.APIConnectionError, openai.AuthenticationError) as error:
            if isinstance(error.__cause__, httpx2.ReadTimeout):  # it is there, and busy with somebody's long answer
                return {}
            raise EndpointError(f"{self.endpoint.shown_url}: {self._plain(error)}") from error
        except (openai.APIError, TimeoutError):
            return {}
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):  # something, but no list of models
            return {}

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Reply:
        """The kept reply, or a new one.

        Raises BudgetError or StoppedError before a call that must not be made, EndpointError after the last attempt.
        """
        if kept := self.replies.get(request):
            self.transcript.add(Turn(purpose=purpose, request=request, reply=kept, from_store=True))
            return kept
        began = time.monotonic()
        try:
            async with self._places:
                reply = await self._persist(request, purpose)
        except (_TransientError, _FinalError) as error:
            self._note(purpose, request, began, error=str(error))
            if isinstance(error, _FinalError) and error.is_about_question:
                # Why a contract was not written travels with its engine; where the model was is nobody's business.
                raise AnswerError(f"the endpoint of {request.model} {error}") from error
            raise EndpointError(f"{self.endpoint.shown_url}: {error}") from error
        except Exception as error:
            self._note(purpose, request, began, error=f"{type(error).__name__}: {error}")
            raise
        self._note(purpose, request, began, reply=reply)
        return reply

    async def _persist(self, request: ChatRequest, purpose: Purpose) -> Reply:
        """Attempt until it works, may not go on, or was tried often enough."""
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_TransientError),
            stop=tenacity.stop_after_attempt(self.endpoint.attempts),
            wait=self._wait,
            reraise=True,
        )
        return await attempts(self._attempt, request, purpose)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """As long as the endpoint asks for, else twice as long each time and never in step with others."""
        error = state.outcome.exception() if state.outcome else None
        backoff = tenacity.wait_random_exponential(self.endpoint.first_wait_s, _LONGEST_WAIT_S)(state)
        asked = error.wait_s if isinstance(error, _TransientError) else None
        wait_s = backoff if asked is None else min(asked, _LONGEST_WAIT_S)
        remaining_s = self.ledger.remaining_s
        return wait_s if remaining_s is None else min(wait_s, remaining_s)

    async def _attempt(self, request: ChatRequest, purpose: Purpose) -> Reply:
        call = self.ledger.book(purpose, request.prompt_tokens, request.max_tokens)
        usage: Usage | None = Usage(prompt_tokens=request.prompt_tokens, completion_tokens=request.max_tokens)
        outcome = "cancelled"
        try:
            reply = await self._call(request)
            self.replies.put(request, reply)
            usage, outcome = reply.usage, reply.finish_reason
            return reply
        except (_TransientError, _FinalError) as error:
            usage, outcome = error.usage, str(error)[:200]
            raise
        finally:
            self.ledger.settle(call, usage, outcome)

    async def _call(self, request: ChatRequest) -> Reply:
        """One call, with as many tries as the endpoint has dislikes about the fields of a request."""
        import httpx2
        import openai

        while True:
            remaining_s = self.ledger.remaining_s
            limit_s = self.endpoint.total_s if remaining_s is None else min(self.endpoint.total_s, remaining_s)
            progress = _Progress(request, self.endpoint.secrets)
            try:
                async with asyncio.timeout(limit_s):
                    return await self._stream(request, progress)
            except TimeoutError as error:
                if remaining_s is not None and limit_s == remaining_s:
                    raise BudgetError(f"the wall time of the run ended during a call to {request.model}") from error
                raise _TransientError(f"no whole answer within {limit_s:g} s", progress.usage) from error
            except openai.BadRequestError as error:
                if not self.dialect.learn(str(error)):
                    refusal = f"refuses the request: {self._plain(error)}"
                    raise _FinalError(refusal, is_about_question=True) from error
            except openai.APIStatusError as error:
                raise self._from_status(error) from error
            except openai.APIConnectionError as error:
                raise _TransientError(f"cannot be reached: {self._plain(error)}", progress.usage_if_begun) from error
            except httpx2.HTTPError as error:  # what breaks in the middle of a stream comes as it is
                raise _TransientError(f"broke off: {self._plain(error)}", progress.usage_if_begun) from error
            except openai.APIError as error:  # an error event in the stream
                raise _TransientError(f"failed while it answered: {self._plain(error)}", progress.usage) from error
            except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
                raise _TransientError(f"sends what is no chat stream: {self._shown(error)}", progress.usage) from error

    async def _stream(self, request: ChatRequest, progress: _Progress) -> Reply:
        fields = self.dialect.fields(request)
        try:
            async with asyncio.timeout(self.endpoint.idle_s):
                stream = await self._openai.chat.completions.create(**fields)
        except TimeoutError as error:
            raise _TransientError(f"silent for {self.endpoint.idle_s:g} s", progress.usage) from error
        try:
            async for chunk in _patiently(stream, self.endpoint.idle_s, progress):
                progress.take(chunk)
                if progress.is_flood:
                    raise _FinalError(f"sends more than the {request.max_tokens} tokens asked for", progress.usage)
        finally:
            with suppress(Exception):
                await stream.close()
        return progress.reply()

    def _from_status(self, error: Any) -> Exception:
        status = int(error.status_code)
        message = f"answers {status}: {self._plain(error)}"
        if status in (408, 409, 425, 429) or status >= 500:
            return _TransientError(message, wait_s=_retry_after_s(error.response.headers.get("retry-after")))
        if status in (401, 403):
            return _FinalError(f"{message}; is the API key right?")
        if status in (413, 422):
            return _FinalError(message, is_about_question=True)
        if status == 404:
            return _FinalError(f"{message}; is {self.endpoint.model!r} served there, and does the URL end in /v1?")
        return _FinalError(message)

    def _plain(self, error: Exception) -> str:
        """An error's text in one line, bounded, and without the key."""
        cause = error.__cause__
        return self._clean(f"{error}{f' ({cause})' if cause and str(cause) else ''}")

    def _shown(self, error: Exception) -> str:
        """The same with the error's kind, for those that nobody wrote for a reader."""
        return self._clean(f"{type(error).__name__}: {error}")

    def _clean(self, text: str) -> str:
        return redact(" ".join(mended(text).split()), self.endpoint.secrets)[:400]

    def _note(
        self, purpose: Purpose, request: ChatRequest, began: float, reply: Reply | None = None, error: str = ""
    ) -> None:
        seconds = round(time.monotonic() - began, 3)
        self.transcript.add(Turn(purpose=purpose, request=request, reply=reply, error=error, seconds=seconds))


class _Progress:
    """What has come of one answer."""

    def __init__(self, request: ChatRequest, secrets: Sequence[str]) -> None:
        """`secrets`: what an endpoint knows and must not put into files that travel."""
        self._request = request
        self._secrets = secrets
        self._pieces: list[str] = []
        self._calls: dict[int, _PartialCall] = {}
        self._bytes = 0
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._model = request.model

    def take(self, chunk: ChatCompletionChunk) -> None:
        self._model = chunk.model or self._model
        if chunk.usage is not None:
            self._usage = Usage(
                prompt_tokens=chunk.usage.prompt_tokens, completion_tokens=chunk.usage.completion_tokens
            )
        for choice in chunk.choices or []:
            piece = _text(choice.delta.content)
            self._pieces.append(piece)
            self._bytes += len(piece.encode("utf-8", "replace"))
            for part in choice.delta.tool_calls or []:
                self._take_call(part)
            self._finish_reason = choice.finish_reason or self._finish_reason

    def _take_call(self, part: Any) -> None:
        call = self._calls.setdefault(part.index or 0, _PartialCall())
        function = part.function
        if function is not None:
            call.name = call.name or _text(function.name)
            call.arguments.append(_text(function.arguments))
            self._bytes += len(call.arguments[-1].encode("utf-8", "replace")) + 1

    @property
    def is_flood(self) -> bool:
        return self._bytes > _BYTES_PER_TOKEN * self._request.max_tokens

    @property
    def is_over(self) -> bool:
        """All is there, though the connection may stay open."""
        return self._finish_reason is not None and self._usage is not None

    @property
    def usage(self) -> Usage:
        """As told, or estimated from what has come."""
        arguments = [piece for call in self._calls.values() for piece in call.arguments]
        completion = estimate_tokens("".join([*self._pieces, *arguments]))
        told = self._usage
        return told or Usage(prompt_tokens=self._request.prompt_tokens, completion_tokens=completion, estimated=True)

    @property
    def usage_if_begun(self) -> Usage | None:
        return self.usage if self._pieces or self._calls else None

    def reply(self) -> Reply:
        if self._finish_reason is None:
            raise _TransientError("the stream ended in the middle of the answer", self.usage_if_begun)
        expected = ("stop", "length", "tool_calls") if self._request.tools else ("stop", "length")
        if self._finish_reason not in expected:
            raise _FinalError(f"ended the answer with {self._kept(repr(self._finish_reason))[:80]}", self.usage)
        text = self._kept("".join(self._pieces))
        reason: Any = self._finish_reason
        calls = tuple(
            ToolCall(name=self._kept(call.name), arguments=self._kept("".join(call.arguments)))
            for _, call in sorted(self._calls.items())
        )
        return Reply(text=text, calls=calls, finish_reason=reason, usage=self.usage, model=self._kept(self._model))

    def _kept(self, text: str) -> str:
        """As it may be kept, and as the transcript keeps it too: what is replayed is what was used."""
        return redact(mended(text), self._secrets)


def _text(given: object) -> str:
    """A field of a chunk that may hold text. TypeError if it holds something else."""
    if given is not None and not isinstance(given, str):
        raise TypeError(f"{type(given).__name__} where text belongs")
    return given or ""


@dataclass
class _PartialCall:
    """A tool call of which not all may have come."""

    name: str = ""
    arguments: list[str] = field(default_factory=list)


async def _patiently(stream: Any, idle_s: float, progress: _Progress) -> AsyncIterator[ChatCompletionChunk]:
    """The chunks of a stream, each awaited no longer than `idle_s`."""
    chunks = stream.__aiter__()
    while True:
        try:
            async with asyncio.timeout(idle_s):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            if progress.is_over:
                return
            raise _TransientError(f"silent for {idle_s:g} s", progress.usage) from error
        yield chunk


def _connect(endpoint: Endpoint) -> AsyncOpenAI:
    import httpx2
    from openai import AsyncOpenAI

    from metainfer.agents.transport import bounded_client

    read_address(endpoint.base_url)
    # Retries are ours: each has to be booked. Time-outs too; the client's own would count from the connection's start.
    http = bounded_client(httpx2.Timeout(endpoint.total_s, connect=endpoint.connect_s))
    return AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key or "none", max_retries=0, http_client=http)


def _context_tokens(listed: Mapping[str, Any]) -> int | None:
    """The context of a listed model, by the names that servers give it (vLLM, Groq, OpenRouter)."""
    figures = (listed.get(name) for name in ("max_model_len", "context_window", "context_length"))
    return next((figure for figure in figures if isinstance(figure, int) and figure > 0), None)


def _retry_after_s(header: str | None) -> float | None:
    """The seconds of a Retry-After header; None for none, or for a date."""
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None


def api_key(variables: Sequence[str] = ("METAINFER_API_KEY", "OPENAI_API_KEY")) -> str:
    """The key for the endpoint, from the first of these variables that is set; empty for a local one.

    InputError, which does not show it, for one that no request could carry.
    """
    for name in variables:
        if key := os.environ.get(name, "").strip():
            if not (key.isascii() and key.isprintable()):
                raise InputError(f"{name} holds a character that no key has; set it anew")
            return key
    return ""
