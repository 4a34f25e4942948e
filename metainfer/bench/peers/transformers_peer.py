"""transformers as a peer: the same folder, the same tokens, in whichever of bf16 and fp32 is faster on this machine."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal

from metainfer.bench.metrics import Timeline, decode_tokens_per_s, ttft_ms
from metainfer.bench.processes import stop_process
from metainfer.bench.servers import START_TIMEOUT_S, subprocess_env
from metainfer.bench.subject import SubjectError, SubjectInfo

Dtype = Literal["fp32", "bf16"]
TOKEN_TIMEOUT_S = 120.0
"""Longest wait for one line of the worker."""
_CANDIDATES: tuple[Dtype, ...] = ("bf16", "fp32")
_PROBE_TOKENS = 8
_WORKER = "metainfer.bench.peers.transformers_worker"


class TransformersPeer:
    """Chooses the dtype by a measured probe when started, unless one is given."""

    kind: Literal["peer"] = "peer"
    concurrent = False
    name = "transformers"

    def __init__(
        self,
        model_dir: Path,
        *,
        threads: int,
        probe_prompt: Sequence[int],
        dtype: Dtype | None = None,
        python: str = sys.executable,
    ) -> None:
        self._model_dir = model_dir
        self._threads = threads
        self._probe_prompt = list(probe_prompt)
        self._dtype = dtype
        self._python = python
        self._worker: Worker | None = None
        self._mode = ""

    def start(self) -> None:
        probes: dict[Dtype, Timeline] = {}
        if self._dtype is None:
            # fp32 last: it usually wins on a CPU without bf16 arithmetic, and then runs already.
            for candidate in _CANDIDATES:
                self._start_worker(candidate)
                probes[candidate] = self._probe()
        chosen = self._dtype or _faster(probes)
        if self._worker is None or self._worker.dtype != chosen:
            self._start_worker(chosen)
        self._mode = "own greedy loop, sdpa attention, KV cache, inference mode" + "".join(
            f"; probe {dtype}: {decode_tokens_per_s(probe):.2f} tokens/s, first token after {ttft_ms(probe):.0f} ms"
            for dtype, probe in probes.items()
        )

    def run(self, prompt_token_ids: Sequence[int], max_new_tokens: int) -> Timeline:
        return self._running().run(prompt_token_ids, max_new_tokens)

    def info(self) -> SubjectInfo:
        worker = self._running()
        return SubjectInfo(
            name=self.name,
            kind=self.kind,
            version=f"{worker.versions['transformers']} (torch {worker.versions['torch']})",
            weight_dtype=worker.dtype,
            kv_dtype=worker.dtype,
            threads=self._threads,
            mode=self._mode,
        )

    @property
    def pid(self) -> int:
        return self._running().pid

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        self._worker = None

    def _running(self) -> Worker:
        if self._worker is None:
            raise SubjectError(f"{self.name}: not started")
        return self._worker

    def _start_worker(self, dtype: Dtype) -> None:
        self.stop()
        self._worker = Worker(self._python, self._model_dir, dtype, self._threads)
        self._worker.wait_until_ready()

    def _probe(self) -> Timeline:
        """A short run after one that only warms up."""
        self.run(self._probe_prompt, 2)
        return self.run(self._probe_prompt, _PROBE_TOKENS)


def _faster(probes: dict[Dtype, Timeline]) -> Dtype:
    return max(probes, key=lambda dtype: decode_tokens_per_s(probes[dtype]))


class Worker:
    """One worker process and its pipes."""

    def __init__(self, python: str, model_dir: Path, dtype: Dtype, threads: int) -> None:
        self.dtype = dtype
        self.versions: dict[str, str] = {}
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by stop)
        command = [python, "-m", _WORKER, "--model", str(model_dir), "--dtype", dtype, "--threads", str(threads)]
        offline = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
        self._process = subprocess.Popen(
            command,
            env=subprocess_env(threads, offline),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._unread = b""
        self._arrived_ns = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        _, record = self._next(START_TIMEOUT_S)
        self.versions = record["ready"]

    def run(self, prompt_token_ids: Sequence[int], max_new_tokens: int) -> Timeline:
        request = {"prompt": list(prompt_token_ids), "max_new_tokens": max_new_tokens}
        line = json.dumps(request).encode() + b"\n"
        assert self._process.stdin is not None
        sent_ns = time.monotonic_ns()
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError as error:
            raise SubjectError(f"transformers: the worker is gone:{self._tail()}") from error
        arrivals: list[int] = []
        tokens: list[int] = []
        while "token" in (answer := self._next(TOKEN_TIMEOUT_S))[1]:
            arrivals.append(answer[0])
            tokens.append(answer[1]["token"])
        if len(tokens) != max_new_tokens:
            raise SubjectError(f"transformers: {len(tokens)} tokens instead of {max_new_tokens}")
        return Timeline(
            sent_ns=sent_ns,
            arrivals_ns=tuple(arrivals),
            prompt_tokens=len(prompt_token_ids),
            output_tokens=len(tokens),
            token_ids=tuple(tokens),
        )

    def stop(self) -> None:
        stop_process(self._process)
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def _next(self, timeout_s: float) -> tuple[int, dict[str, Any]]:
        """The next line and the instant at which its last byte arrived."""
        assert self._process.stdout is not None
        # Read below the stream's buffer, which would hide how much is there and when it came.
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([descriptor], [], [], timeout_s)[0]:
                raise SubjectError(f"transformers: the worker said nothing for {timeout_s:.0f} s:{self._tail()}")
            piece = os.read(descriptor, 1 << 16)
            self._arrived_ns = time.monotonic_ns()
            if not piece:
                raise SubjectError(f"transformers: the worker ended:{self._tail()}")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            record = json.loads(line)
        except ValueError as error:
            raise SubjectError(f"transformers: not JSON from the worker: {line[:200]!r}") from error
        assert isinstance(record, dict)
        return self._arrived_ns, record

    def _tail(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 1500))
        return "\n" + self._log.read().decode(errors="replace")
