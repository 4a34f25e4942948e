"""What became of an optimisation: what was hot, what was tried, what was kept, and the figures that decided it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from metainfer.bench.duel import Duel, Metric

RULE = (
    "In every cycle two processes of the old engine and one of the new take turns; a cycle's ratio is the new one's "
    "speed over the geometric mean of the two old ones. A variant is kept if its lowest ratio is greater than the "
    "noise, the largest factor between the two old ones in any cycle."
)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Trial(_Record):
    """One variant that held its contract's checks, in the whole engine."""

    round: int
    sample: int
    verdict: Literal["kept", "not faster", "red", "not measured"]
    reason: str
    duel: Duel | None = None
    """Against the engine with everything that was kept before."""


class Tried(_Record):
    """One contract that the model was asked about."""

    contract: str
    share: float
    """Of the profile's wall time."""
    attempts: int
    finding: str
    """Of the last answer that did not hold; empty if all did."""
    stopped: str
    """Why the model was asked no further, if not because all was done."""
    trials: tuple[Trial, ...]

    @property
    def kept(self) -> Trial | None:
        """The trial whose units stand in the engine: of several that won, each against the one before, the last."""
        return next((trial for trial in reversed(self.trials) if trial.verdict == "kept"), None)

    def in_words(self) -> str:
        """What came of it, in one line."""
        if self.kept and self.kept.duel:
            return f"faster: {self.kept.duel}"
        if self.trials:
            return f"as it was: {self.trials[-1].verdict}: {self.trials[-1].reason}"
        why = self.stopped or self.finding or "no answer"
        return f"as it was: none of {self.attempts} answers held: {why[:200]}"


class OptimiseReport(_Record):
    """The whole of it; `optimise` in an engine's evidence.json."""

    metric: Metric
    rule: str = RULE
    shares: dict[str, float]
    """Contract to its share of the profile's wall time, the hottest first; of all contracts with units that ran."""
    tried: tuple[Tried, ...]
    note: str = ""
    """Why nobody was asked, if so."""

    @property
    def kept(self) -> list[Tried]:
        return [tried for tried in self.tried if tried.kept]

    def in_words(self) -> str:
        return self.note or "; ".join(f"{tried.contract} {tried.in_words()}" for tried in self.tried)
