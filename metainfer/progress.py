"""How long work tells what it is doing; the CLI decides how that looks."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the steps of one run; `total` and `amount` share the unit of the step (bytes, tensors)."""

    def start(self, step: str, total: float | None = None) -> None: ...

    def advance(self, step: str, amount: float) -> None: ...

    def done(self, step: str, message: str = "") -> None: ...

    def note(self, message: str) -> None: ...


class Silent:
    """Says nothing: for tests and for callers that only want the result."""

    def start(self, step: str, total: float | None = None) -> None: ...

    def advance(self, step: str, amount: float) -> None: ...

    def done(self, step: str, message: str = "") -> None: ...

    def note(self, message: str) -> None: ...
