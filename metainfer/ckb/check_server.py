"""Runs checks in throw-away processes: a candidate that hangs, crashes or ends the process harms nobody.

Importing torch takes seconds, so one server process imports it once and forks for every job; it runs nothing itself,
which keeps forking safe. Not a sandbox: a fork may read and write what the caller may. Exemplars and their mutants are
reviewed code; what a model wrote is checked in the sandbox instead.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from metainfer.ckb.checks import CheckError, Finding, load_candidate, run_checks

DEFAULT_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 5.0
_SHOWN_CHARACTERS = 500
IMPORT = "import"
"""The check's name in the finding that a candidate, or a unit of it, cannot be imported."""
_PRELOADED = ("torch", "numpy", "tokenizers", "safetensors.torch", "jinja2", "fastapi", "uvicorn", "prometheus_client")


@dataclass(frozen=True)
class CheckJob:
    """One check file against one engine."""

    engine_dir: Path
    check_file: Path
    seeds: tuple[int, ...] = (0,)
    first_only: bool = False
    """Stop at the first finding; enough to know that a mutant was noticed."""
    only: tuple[str, ...] = ()
    """Names of the checks to run; empty means all."""
    units: tuple[str, ...] = ()
    """Units that must be there before any check runs; one that is not is found under the name `IMPORT`."""
    timeout_s: float = DEFAULT_TIMEOUT_S


class CheckServer:
    """A context manager around the server process. Not for use by several threads at once.

    `environment` is added to the caller's, for instance to give `METAINFER_KERNELS` a folder of its own.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> CheckServer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "metainfer.ckb.check_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=_END_TIMEOUT_S)
        self._process.kill()
        self._process.wait()
        self._process = None

    def run(self, job: CheckJob) -> list[Finding]:
        """What the checks found. A crash or a timeout is a finding; a check file that cannot run is a CheckError."""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("CheckServer is used as a context manager")
        request = {**asdict(job), "engine_dir": str(job.engine_dir), "check_file": str(job.check_file)}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise CheckError(f"the check server ended with status {self._process.wait()}; its messages are above")
        reply = json.loads(line)
        if "error" in reply:
            raise CheckError(reply["error"])
        return [Finding(**finding) for finding in reply["findings"]]


def _serve() -> None:
    """Answer one JSON line for each JSON line on standard input."""
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Whatever an import prints belongs to the log, not into the protocol.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        reply = _in_child(json.loads(line))
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def _in_child(request: Mapping[str, Any]) -> dict[str, Any]:
    # What a candidate prints is kept for the one case in which it may be all that is known.
    with tempfile.TemporaryFile() as log:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            # Nothing of the server's stack may run again in here, whatever happens.
            try:
                os.close(read_end)
                os.setsid()
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                with os.fdopen(write_end, "wb") as stream:
                    stream.write(json.dumps(_perform(request)).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as stream:
            data = _read(stream.fileno(), time.monotonic() + request["timeout_s"])
        # The child leads its own group: processes that it started go with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if data:
            reply: dict[str, Any] = json.loads(data)
            return reply
        log.seek(0)
        said = log.read().decode("utf-8", "replace").strip()[-_SHOWN_CHARACTERS:]
    if data is None:
        return _found("timeout", f"the checks ran for more than {request['timeout_s']:g} s and were ended; {said}")
    how = f"was ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended itself"
    return _found("crash", f"the process {how}; {said}")


def _read(descriptor: int, deadline: float) -> bytes | None:
    """All bytes until the other side closes, or None if it does not in time."""
    data = b""
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([descriptor], [], [], left)
        if not ready:
            break
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return data
        data += piece
    return None


def _found(check: str, message: str) -> dict[str, Any]:
    return {"findings": [asdict(Finding(check, message))]}


def _perform(request: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="metainfer-check-") as folder:
        try:
            candidate = load_candidate(Path(request["engine_dir"]), Path(folder))
            for unit in request["units"]:
                candidate.unit(unit)
        except CheckError as error:
            return {"error": str(error)}
        except Exception as error:
            # An engine that cannot be imported is a finding about the engine.
            return _found(IMPORT, f"{type(error).__name__}: {error}")
        try:
            findings = run_checks(
                Path(request["check_file"]),
                candidate,
                request["seeds"],
                first_only=request["first_only"],
                only=request["only"],
            )
        except CheckError as error:
            return {"error": str(error)}
    return {"findings": [asdict(finding) for finding in findings]}


if __name__ == "__main__":
    _serve()
    # Tearing all those libraries down takes seconds and changes nothing.
    os._exit(0)
