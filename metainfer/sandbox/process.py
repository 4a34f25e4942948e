"""A child process whose output is kept in bounds and whose end is certain."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from metainfer.sandbox.records import TIMED_OUT_RC, Limits, SandboxResult
from metainfer.sandbox.watch import Watch

_TAIL_BYTES = 64 << 10
_READ_BYTES = 64 << 10
_KILL_WAIT_S = 10.0


class Tail:
    """The last bytes of a stream, read by a thread of its own so that the writer never blocks."""

    def __init__(self, stream: IO[bytes], limit: int = _TAIL_BYTES) -> None:
        self._stream = stream
        self._limit = limit
        self._data = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self, wait_s: float = 0.0) -> str:
        """What has arrived. `wait_s`: how long to wait for the stream's end first."""
        if wait_s:
            self._thread.join(wait_s)
        return bytes(self._data).decode(errors="replace")

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while piece := os.read(self._stream.fileno(), _READ_BYTES):
                self._data += piece
                del self._data[: -self._limit]
        with contextlib.suppress(OSError):
            self._stream.close()


class Child:
    """A started command in a process group of its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None,
        sandboxed: bool,
        limits: Limits,
        writable: Sequence[Path],
        pass_fds: Sequence[int] = (),
    ) -> None:
        """`writable`: the folders whose size is held to `limits`."""
        self.sandboxed = sandboxed
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdout = Tail(self.process.stdout)
        self.stderr = Tail(self.process.stderr)
        _offer_first_when_memory_ends(self.process.pid)
        self._watch = Watch(self.process.pid, limits, writable, self._kill_group)

    @property
    def exceeded(self) -> str:
        """The limit for which it was ended, in words; empty if none."""
        return self._watch.exceeded

    def wait(self, timeout_s: float) -> SandboxResult:
        """Wait for the end; past `timeout_s`, or when the caller is interrupted, kill it and all that it started."""
        timed_out = False
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            self.kill()
        return SandboxResult(
            rc=TIMED_OUT_RC if timed_out else self.process.returncode,
            stdout=self.stdout.text(wait_s=2.0),
            stderr=self.stderr.text(wait_s=2.0),
            timed_out=timed_out,
            seconds=time.monotonic() - self._began,
            sandboxed=self.sandboxed,
            exceeded=self.exceeded,
        )

    def kill(self) -> None:
        """Kill it and all that it started."""
        self._kill_group()
        self._watch.stop()

    def _kill_group(self) -> None:
        """In a sandbox its first process dies with bwrap, and with that one all others."""
        if self.sandboxed and self.process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_KILL_WAIT_S)


def _offer_first_when_memory_ends(pid: int) -> None:
    """Should memory run out between two looks at it, let the kernel end the command and not the session around it."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")
