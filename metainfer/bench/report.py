"""The benchmark's result as data: what `evidence.json` keeps and what tables are made from."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from metainfer.bench.ceiling import Ceiling
from metainfer.bench.environment import Environment, Noise
from metainfer.bench.metrics import FORMULAS, Spread
from metainfer.bench.subject import SubjectInfo


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BenchSettings(_Record):
    """What is asked of every subject, in tokens."""

    decode_prompt: int = Field(128, ge=1)
    decode_tokens: int = Field(64, ge=2)
    prefill_prompt: int = Field(512, ge=1)
    clients: int = Field(8, ge=1)
    """Closed loop: each client sends its next request when its last one is answered."""
    requests_per_client: int = Field(1, ge=1)
    load_prompt: int = Field(128, ge=1)
    load_tokens: int = Field(32, ge=2)
    repeats: int = Field(3, ge=1)
    threads: int = Field(ge=1)
    budget_s: float = Field(300.0, gt=0)
    """No repeat is begun that would, going by the longest so far, end later than this."""
    seed: int = 0

    @classmethod
    def quick(cls, *, threads: int, budget_s: float = 120.0) -> BenchSettings:
        """A smoke test: the same steps, figures too short to quote."""
        return cls(
            decode_prompt=32,
            decode_tokens=16,
            prefill_prompt=128,
            clients=4,
            load_prompt=32,
            load_tokens=8,
            threads=threads,
            budget_s=budget_s,
        )

    def within(self, max_model_len: int, max_concurrency: int) -> BenchSettings:
        """These settings shrunk to what an engine of that context length and concurrency can serve."""

        def fit(prompt: int, output: int) -> tuple[int, int]:
            output = max(2, min(output, max_model_len // 3))
            return max(1, min(prompt, max_model_len - output)), output

        decode_prompt, decode_tokens = fit(self.decode_prompt, self.decode_tokens)
        load_prompt, load_tokens = fit(self.load_prompt, self.load_tokens)
        return self.model_copy(
            update={
                "decode_prompt": decode_prompt,
                "decode_tokens": decode_tokens,
                "prefill_prompt": fit(self.prefill_prompt, 2)[0],
                "load_prompt": load_prompt,
                "load_tokens": load_tokens,
                "clients": min(self.clients, max_concurrency),
            }
        )


class Memory(_Record):
    """Bytes over the subject's process tree, read from outside after its last repeat."""

    peak_rss_bytes: int
    private_bytes: int
    """Not backed by a file: what is needed beside mapped weights."""


class SubjectReport(_Record):
    """One subject's figures by name; see `FIGURES` for their meaning and unit."""

    info: SubjectInfo
    start_s: float
    """Until it could answer, imports and probes included."""
    figures: dict[str, Spread]
    memory: Memory | None


class Missing(_Record):
    """A subject that was asked for and has no figures."""

    name: str
    reason: str


class Ratio(_Record):
    """Engine over peer, paired within repeats."""

    figure: str
    peer: str
    ratio: Spread


class Agreement(_Record):
    """How far the engine's and a peer's greedy tokens agree on the decode prompts."""

    peer: str
    tokens: int
    """Compared per prompt."""
    prefixes: tuple[int, ...]
    """Agreeing tokens per prompt, from the first on."""


class GoalResult(_Record):
    """One goal of the spec. `measured` is None where the run has no such figure, and then it is not met."""

    goal: str
    wanted: float
    at_least: bool
    measured: float | None
    met: bool
    note: str = ""


class BenchReport(_Record):
    """Everything a reader needs to believe or doubt the figures."""

    schema_: Literal["metainfer/bench/v1"] = Field("metainfer/bench/v1", alias="schema")
    engine: str
    settings: BenchSettings
    prompts: str
    repeats_done: int
    environment: Environment
    noise: Noise
    ceilings: tuple[Ceiling, ...]
    """In the order taken: one before the first measurement, then one after each."""
    subjects: tuple[SubjectReport, ...]
    """The engine first."""
    missing: tuple[Missing, ...]
    ratios: tuple[Ratio, ...]
    agreements: tuple[Agreement, ...]
    goals: tuple[GoalResult, ...]
    warnings: tuple[str, ...]
    """Whatever makes the figures less certain."""
    formulas: dict[str, str] = Field(default_factory=lambda: dict(FORMULAS))
    seconds: float

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    def subject(self, name: str) -> SubjectReport | None:
        """The subject's report, if it has one."""
        return next((subject for subject in self.subjects if subject.info.name == name), None)
