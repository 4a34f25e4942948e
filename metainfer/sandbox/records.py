"""What a sandboxed command may use, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one command and all processes that it starts."""

    wall_s: float = 120.0
    """After this everything inside is killed."""
    processes: int = 512
    """Processes and threads at once."""
    file_bytes: int = 4 * _GIB
    """Largest file that it may write."""
    address_space_bytes: int | None = None
    """Per process. Leave it open for torch, which reserves far more than it uses."""
    scratch_bytes: int = 2 * _GIB
    """Size of the memory-backed /tmp and home."""
    open_files: int = 4096
    memory_bytes: int | None = None
    """All processes together, less what lies in /tmp and home; None: what the machine has available, less a reserve."""
    job_bytes: int = 8 * _GIB
    """All files together in the job folder and other writable folders that lie on a disk."""
    job_files: int = 100_000
    """Entries of those folders."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """The end of a command."""

    rc: int
    """Exit status; negative is the signal that ended it; 124 if it ran out of time."""
    stdout: str
    """The end of what it wrote."""
    stderr: str
    timed_out: bool
    seconds: float
    sandboxed: bool
    """False: a plain subprocess ran it, because the caller allowed that."""
    exceeded: str = ""
    """The limit on memory or files for which it was ended, in words; empty if none."""

    @property
    def ok(self) -> bool:
        return self.rc == 0 and not self.timed_out and not self.exceeded

    def explain(self, limit: int = 1500) -> str:
        """How it ended, in words, with the end of its output."""
        if self.timed_out:
            how = f"ran out of time after {self.seconds:.0f} s"
        elif self.exceeded:
            how = f"was ended: {self.exceeded}"
        elif self.rc < 0:
            how = f"was ended by signal {-self.rc}"
        else:
            how = f"ended with status {self.rc}"
        tail = (self.stderr or self.stdout).strip()[-limit:]
        return f"{how}: {tail}" if tail else how


TIMED_OUT_RC = 124
