"""What a command says while it works: live on a terminal, plain lines in a log, JSON lines for a program."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from metainfer.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


class Reporter(Progress, Protocol):
    """Progress, and a place for results. Use as a context manager."""

    def result(self, text: str, data: dict[str, Any]) -> None:
        """Report the outcome: `text` (rich markup allowed) for people, `data` for programs."""
        ...

    def __enter__(self) -> Reporter: ...

    def __exit__(self, *exception: object) -> None: ...


def make_reporter(*, as_json: bool, aside: bool = False) -> Reporter:
    """JSON if asked for, live on a terminal, plain lines otherwise.

    `aside`: on standard error, for commands whose standard output is a document that programs read.
    """
    stream = sys.stderr if aside else sys.stdout
    if as_json:
        return JsonReporter(stream)
    # A runner of GitHub Actions reads its log line by line, for commands too: no cursor may move before one.
    if stream.isatty() and os.environ.get("GITHUB_ACTIONS") != "true":
        from rich.console import Console

        return LiveReporter(Console(file=stream))
    return PlainReporter(stream)


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.05 else "at once"


def strip_markup(text: str) -> str:
    """`text` without rich markup, for logs."""
    from rich.text import Text

    return Text.from_markup(text).plain


def one_line(message: str) -> str:
    """A message as a terminal may show it: models and code speak in some, and must not move its cursor or colour it.

    >>> one_line("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    return printable(" ".join(message.split()))


def printable(text: str) -> str:
    """The same for text of several lines.

    >>> printable("red \\x1b[31m\\n")
    'red \\\\x1b[31m\\n'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class PlainReporter:
    """One line when a step starts, one when it ends; nothing that needs a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started: dict[str, float] = {}

    def __enter__(self) -> PlainReporter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.flush()

    def start(self, step: str, total: float | None = None) -> None:
        self._started[step] = time.monotonic()
        self._say(f"… {step}")

    def advance(self, step: str, amount: float) -> None:
        """A log has no use for every fraction of a step."""

    def done(self, step: str, message: str = "") -> None:
        seconds = time.monotonic() - self._started.pop(step, time.monotonic())
        self._say(f"✓ {step} ({_took(seconds)}){': ' + one_line(message) if message else ''}")

    def note(self, message: str) -> None:
        self._say(f"  {one_line(message)}")

    def result(self, text: str, data: dict[str, Any]) -> None:
        self._say(printable(strip_markup(text)))

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class JsonReporter:
    """One JSON object per event; the last line is the result."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started: dict[str, float] = {}

    def __enter__(self) -> JsonReporter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.flush()

    def start(self, step: str, total: float | None = None) -> None:
        self._started[step] = time.monotonic()
        self._emit({"event": "start", "step": step, "total": total})

    def advance(self, step: str, amount: float) -> None:
        """Left out: a program that wants every byte can watch the files."""

    def done(self, step: str, message: str = "") -> None:
        seconds = round(time.monotonic() - self._started.pop(step, time.monotonic()), 3)
        self._emit({"event": "done", "step": step, "seconds": seconds, "message": message})

    def note(self, message: str) -> None:
        self._emit({"event": "note", "message": message})

    def result(self, text: str, data: dict[str, Any]) -> None:
        self._emit({"event": "result", **data})

    def _emit(self, record: dict[str, Any]) -> None:
        # Half a character, which no stream takes, is spelled as JSON spells it; so is what moves a cursor.
        text = json.dumps(record, ensure_ascii=False)
        print("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text), file=self._stream, flush=True)


class LiveReporter:
    """Spinners and bars by rich, which leave a plain trail of finished steps behind."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )

    def __enter__(self) -> LiveReporter:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def start(self, step: str, total: float | None = None) -> None:
        self._started[step] = time.monotonic()
        self._tasks[step] = self._bars.add_task(step, total=total)

    def advance(self, step: str, amount: float) -> None:
        if step in self._tasks:
            self._bars.advance(self._tasks[step], amount)

    def done(self, step: str, message: str = "") -> None:
        from rich.markup import escape

        seconds = time.monotonic() - self._started.pop(step, time.monotonic())
        if step in self._tasks:
            self._bars.remove_task(self._tasks.pop(step))
        told = f": {escape(one_line(message))}" if message else ""
        self._console.print(f"[green]✓[/] {escape(step)} [dim]({_took(seconds)})[/]{told}")

    def note(self, message: str) -> None:
        from rich.markup import escape

        self._console.print(f"  [dim]{escape(one_line(message))}[/]")

    def result(self, text: str, data: dict[str, Any]) -> None:
        self._bars.stop()
        self._console.print(printable(text))
