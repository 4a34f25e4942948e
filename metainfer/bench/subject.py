"""What is measured: an engine or a peer, each a process of its own that streams greedy tokens to this one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from metainfer.bench.metrics import Timeline
from metainfer.errors import ExitCode, MetainferError

_BRIEF_CHARACTERS = 400


class SubjectError(MetainferError):
    """A subject did not start, broke down, or answered something that cannot be measured."""

    exit_code = ExitCode.ENVIRONMENT


def brief(message: str) -> str:
    """The first and last line of an error, which may carry a whole log, without this user's home: for reports."""
    lines = [line.strip() for line in message.replace(str(Path.home()), "~").splitlines() if line.strip()]
    return " … ".join(dict.fromkeys([lines[0], lines[-1]]))[:_BRIEF_CHARACTERS] if lines else "no reason given"


class SubjectInfo(BaseModel):
    """What a subject is, as far as its figures depend on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: Literal["engine", "peer"]
    version: str
    weight_dtype: Literal["fp32", "bf16"]
    kv_dtype: Literal["fp32", "bf16"]
    threads: int
    mode: str
    """How it runs, in words: what a reader needs in order to judge whether it was treated fairly."""


class Subject(Protocol):
    """A running thing that continues prompts. Greedy; the end-of-sequence token does not end it."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Literal["engine", "peer"]: ...

    @property
    def concurrent(self) -> bool:
        """Whether `run` may be called from several threads at once."""
        ...

    def start(self) -> None:
        """Start the process and wait until it can answer. Raises SubjectError."""
        ...

    def run(self, prompt_token_ids: Sequence[int], max_new_tokens: int) -> Timeline:
        """Continue a prompt by exactly `max_new_tokens`, noting when each arrives. Raises SubjectError."""
        ...

    def info(self) -> SubjectInfo:
        """Available once started."""
        ...

    @property
    def pid(self) -> int:
        """Root of the process tree whose memory and CPU time are the subject's."""
        ...

    def stop(self) -> None:
        """End the process. Does nothing if it is not running."""
        ...


def closed_loop(subject: Subject, prompts: Sequence[list[int]], clients: int, tokens: int) -> list[Timeline]:
    """`clients` at once, each with its share of the prompts, one after the other."""

    def client(share: Sequence[list[int]]) -> list[Timeline]:
        return [subject.run(prompt, tokens) for prompt in share]

    with ThreadPoolExecutor(clients) as pool:
        results = list(pool.map(client, [prompts[index::clients] for index in range(clients)]))
    return [timeline for timelines in results for timeline in timelines]
