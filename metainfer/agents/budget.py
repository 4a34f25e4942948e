"""What model calls may cost, and a ledger of what they did: booked before a call is sent, settled when it ended.

The ledger is a file of JSON lines. A process that dies leaves its calls in flight booked at the most they could have
cost, so a resumed run never spends more than its budget, whatever became of them.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metainfer.agents.lines import append_line, drop_torn_line
from metainfer.agents.messages import Usage
from metainfer.errors import ConflictError, InputError, RefusedError

STOP_FILE = "STOP"


class BudgetError(RefusedError):
    """The next call could go beyond a limit; it was not made."""


class StoppedError(ConflictError):
    """A person wants no call to be made: by the stop file, or a label."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Price(_Model):
    """US dollars per million tokens."""

    input_usd: float = Field(ge=0, allow_inf_nan=False)
    output_usd: float = Field(ge=0, allow_inf_nan=False)

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """US dollars."""
        return (prompt_tokens * self.input_usd + completion_tokens * self.output_usd) / 1e6


class Limits(_Model):
    """What calls may use; None is no limit."""

    usd: float | None = None
    tokens: int | None = None
    wall_s: float | None = None
    calls: int | None = None


class Purpose(_Model):
    """What a call is for."""

    role: str
    subject: str
    """The unit or contract it is about, or the engine's name."""
    round: int = 0


class Entry(_Model):
    """A line of the ledger. `booked` is the most that a call may cost, `settled` what it did."""

    event: Literal["booked", "settled"]
    call: int = Field(ge=0)
    purpose: Purpose
    usd: float = Field(ge=0, allow_inf_nan=False)
    tokens: int = Field(ge=0)
    outcome: str = ""
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class Ledger:
    """The spending on one engine's inputs, in `file`. Tasks, threads and processes may book at once."""

    def __init__(
        self,
        file: Path,
        limits: Limits,
        *,
        per_subject: Limits | None = None,
        price: Price | None = None,
        stop_file: Path | None = None,
        halted: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`per_subject`: limits that hold for every unit by itself. `stop_file`: no call is made while it exists.

        `halted`: asked before each call for a reason not to make it; empty is none.
        """
        if price is None and (limits.usd is not None or (per_subject and per_subject.usd is not None)):
            raise InputError("a budget in dollars needs the model's price; name it, or give the budget in tokens")
        self.file = file
        self.limits = limits
        self.per_subject = per_subject or Limits()
        self.price = price or Price(input_usd=0.0, output_usd=0.0)
        self.stop_file = stop_file
        self._halted = halted
        self._clock = clock
        self._began = clock()
        self._threads = Lock()
        self._calls: dict[int, Entry] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        with self._alone():
            pass
        self._earlier_s = max((entry.seconds for entry in self._calls.values()), default=0.0)

    @property
    def wall_s(self) -> float:
        """Seconds of this run so far, those before a restart included."""
        return self._earlier_s + self._clock() - self._began

    @property
    def remaining_s(self) -> float | None:
        """Seconds left; None without a limit."""
        return None if self.limits.wall_s is None else max(0.0, self.limits.wall_s - self.wall_s)

    def spent(self, subject: str | None = None) -> Entry:
        """Sum over all calls, or those about one subject; a call in flight counts as booked."""
        chosen = [entry for entry in self._calls.values() if subject in (None, entry.purpose.subject)]
        return Entry(
            event="settled",
            call=len(chosen),
            purpose=Purpose(role="all", subject=subject or "all"),
            usd=sum(entry.usd for entry in chosen),
            tokens=sum(entry.tokens for entry in chosen),
            seconds=self.wall_s,
        )

    def book(self, purpose: Purpose, prompt_tokens: int, max_tokens: int) -> int:
        """Set the most that a call may cost aside; returns its number. BudgetError or StoppedError if it may not be."""
        with self._alone():
            if self.stop_file is not None and self.stop_file.exists():
                raise StoppedError(f"{self.stop_file} is there, so no model is called; remove it to go on")
            if self._halted is not None and (why := self._halted()):
                raise StoppedError(why)
            most = Entry(
                event="booked",
                call=max(self._calls, default=0) + 1,
                purpose=purpose,
                usd=self.price.of(prompt_tokens, max_tokens),
                tokens=prompt_tokens + max_tokens,
                seconds=self.wall_s,
            )
            self._require(self.limits, self.spent(), most, "the run")
            self._require(self.per_subject, self.spent(purpose.subject), most, purpose.subject)
            self._write(most)
            return most.call

    def settle(self, call: int, usage: Usage | None, outcome: str) -> None:
        """Book what a call did cost; no usage is a call that was never served."""
        with self._alone():
            booked = self._calls[call]
            usage = usage or Usage(prompt_tokens=0, completion_tokens=0)
            usd = self.price.of(usage.prompt_tokens, usage.completion_tokens)
            update = {"event": "settled", "usd": usd, "tokens": usage.total, "outcome": outcome}
            self._write(booked.model_copy(update=update | {"seconds": self.wall_s}))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the file against other threads and processes, and know what they have booked meanwhile."""
        with self._threads, self.file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            drop_torn_line(self.file)
            self._calls = {entry.call: entry for entry in read_ledger(self.file)}
            yield

    def _require(self, limits: Limits, spent: Entry, most: Entry, whose: str) -> None:
        for name, limit, used, more in (
            ("usd", limits.usd, spent.usd, most.usd),
            ("tokens", limits.tokens, spent.tokens, most.tokens),
            ("calls", limits.calls, spent.call, 1),
            ("wall_s", limits.wall_s, self.wall_s, 0.0),
        ):
            if limit is not None and used + more > limit:
                raise BudgetError(
                    f"the budget of {whose} is used up: {used:,.6g} {name} of {limit:,.6g}, "
                    f"and the next call may take {more:,.6g}"
                )

    def _write(self, entry: Entry) -> None:
        append_line(self.file, entry.model_dump_json().encode())
        self._calls[entry.call] = entry


def read_ledger(file: Path) -> Iterator[Entry]:
    """Every whole line, in order; a last one that a crash cut off is left out.

    InputError names a bad line: one that cannot be read, or that no call leaves. Calls are booked by number, and each
    is settled once at most, so that no line that is added makes what was spent before it less.
    """
    if not file.exists():
        return
    *lines, _torn = file.read_bytes().split(b"\n")
    booked, open_calls = 0, set[int]()
    for number, line in enumerate(lines, start=1):
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError as error:
            raise InputError(f"{file}:{number}: not a line of a ledger ({error}); restore the file") from error
        if entry.event == "booked" and entry.call == booked + 1:
            booked = entry.call
            open_calls.add(booked)
        elif entry.event == "settled" and entry.call in open_calls:
            open_calls.remove(entry.call)
        else:
            raise InputError(f"{file}:{number}: call {entry.call} cannot be {entry.event} here; restore the file")
        yield entry
