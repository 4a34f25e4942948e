"""How a command speaks to its runner: outputs, summaries, annotations, and a log that obeys nobody else.

A runner takes lines of a log that begin with `::` for commands, whoever wrote them. What comes from a spec, a report or
a model is escaped before it gets there.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from metainfer.forge.markdown import disarm, visible

MAX_ANNOTATIONS = 10
"""GitHub drops what one step says beyond them."""
MAX_SUMMARY_BYTES = 1_000_000
"""GitHub drops a step's summary of more than 1 MiB altogether."""
Level = Literal["error", "warning", "notice"]
_RANK: Mapping[Level, int] = {"error": 0, "warning": 1, "notice": 2}
_MAX_MESSAGE = 2000


@dataclass(frozen=True)
class Annotation:
    """A remark at a place in the repository. `line` and `column` count from 1; 0 is none."""

    level: Level
    message: str
    file: str = ""
    line: int = 0
    column: int = 0

    def command(self) -> str:
        """The runner's command for it."""
        places = {"file": self.file, "line": self.line, "col": self.column}
        given = ",".join(f"{name}={_property(str(value))}" for name, value in places.items() if value)
        message = visible(self.message, keep_lines=True)[:_MAX_MESSAGE]
        return f"::{self.level}{' ' + given if given else ''}::{_data(message)}"


def annotate(annotations: Sequence[Annotation]) -> None:
    """Say the most serious ones, at most as many as are shown, and how many more there are."""
    ranked = sorted(annotations, key=lambda one: _RANK[one.level])
    shown = ranked if len(ranked) <= MAX_ANNOTATIONS else ranked[: MAX_ANNOTATIONS - 1]
    for one in shown:
        print(one.command() if on_runner() else say_plainly(one), flush=True)
    if left := len(ranked) - len(shown):
        more = Annotation(ranked[len(shown)].level, f"{left} more; the summary of this step has them all")
        print(more.command() if on_runner() else say_plainly(more), flush=True)


def say_plainly(one: Annotation) -> str:
    """An annotation for a terminal."""
    place = ":".join(str(part) for part in (one.file, one.line, one.column) if part)
    return safe_lines(f"{one.level}: {place + ': ' if place else ''}{one.message}")


def say(text: str, *, error: bool = False) -> None:
    """Print text that nobody vouches for."""
    print(safe_lines(text), file=sys.stderr if error else sys.stdout, flush=True)


def safe_lines(text: str) -> str:
    """`text` without what moves a cursor or commands a runner; lines stay."""
    return "\n".join(disarm(line) for line in visible(text, keep_lines=True).split("\n"))


def set_outputs(values: Mapping[str, str]) -> None:
    """Set outputs of the step; elsewhere than on a runner they are printed. Values may hold anything but NUL."""
    path = os.environ.get("GITHUB_OUTPUT")
    lines = []
    for name, value in values.items():
        end = f"end-{secrets.token_hex(16)}"
        lines.append(f"{name}<<{end}\n{value}\n{end}\n")
    if path:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.writelines(lines)
        return
    for name, value in values.items():
        print(f"{name}={value}", flush=True)


def add_summary(markdown: str) -> None:
    """Add Markdown to the step's summary, cut to what is shown; nothing happens elsewhere than on a runner."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    text = markdown.rstrip() + "\n"
    if len(text.encode()) > MAX_SUMMARY_BYTES:
        text = text.encode()[: MAX_SUMMARY_BYTES - 100].decode("utf-8", "ignore") + "\n\n…cut.\n"
    with Path(path).open("a", encoding="utf-8") as stream:
        stream.write(text)


@contextmanager
def commands_stopped() -> Iterator[None]:
    """Let the runner take nothing that is printed for a command, until the end of the block."""
    if not on_runner():
        yield
        return
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}", flush=True)
    try:
        yield
    finally:
        sys.stderr.flush()
        print(f"::{token}::", flush=True)


def on_runner() -> bool:
    """Whether a runner of GitHub Actions reads what is printed."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(" ".join(visible(text).split())).replace(":", "%3A").replace(",", "%2C")
