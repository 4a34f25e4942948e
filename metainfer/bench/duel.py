"""Is a new engine faster than the old one? Both are measured in turns, and the old one twice: that is the noise."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from metainfer.bench.engine_subject import EngineSubject
from metainfer.bench.environment import usable_cores
from metainfer.bench.metrics import output_tokens_per_s
from metainfer.bench.prompts import PromptMaker
from metainfer.bench.report import BenchSettings
from metainfer.bench.servers import sandboxed_launcher
from metainfer.bench.subject import Subject, closed_loop
from metainfer.generate.manifest import read_manifest
from metainfer.progress import Progress
from metainfer.sandbox.sandbox import Sandbox

Metric = Literal["latency", "throughput"]
CYCLES = 5
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 8
"""Of a cycle. In each round every engine has one turn, and its best one is its speed: others use this machine too."""
_CYCLE_S = 5.0
"""Rounds are added until a cycle takes about so long."""
_MOST_PROMPTS = 600
"""Of all cycles together; prompts are never used twice."""
_SHORT_PROMPT = 32
"""Tokens; so short that its reading hardly counts beside the decoding of the answer."""
_SMALL_BYTES = 64 << 20


class Duel(BaseModel):
    """Speeds in tokens/s, one per cycle: the best of its rounds. `old` and `twin` are two processes of one engine.

    The ratio of a cycle is the new engine's speed over the geometric mean of the two old ones; the noise is the largest
    factor between these two in any cycle. The new engine wins if the lowest ratio is greater than the noise. Then it
    was the fastest of the three in every cycle; where noise is new in each, an engine that is as fast as the old one
    manages that with a chance of at most 3 to the power of -cycles. Luck of a process that lasts shows as noise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: Metric
    old: tuple[float, ...] = Field(min_length=1)
    twin: tuple[float, ...]
    new: tuple[float, ...]

    @model_validator(mode="after")
    def _complete(self) -> Duel:
        speeds = (*self.old, *self.twin, *self.new)
        if not len(self.old) == len(self.twin) == len(self.new):
            raise ValueError("each engine has one speed per cycle")
        if not all(math.isfinite(speed) and speed > 0 for speed in speeds):
            raise ValueError("a speed is finite and greater than zero")
        return self

    @property
    def ratios(self) -> list[float]:
        """New over old, cycle by cycle."""
        cycles = zip(self.old, self.twin, self.new, strict=True)
        return [new / (math.sqrt(old) * math.sqrt(twin)) for old, twin, new in cycles]

    @property
    def ratio(self) -> float:
        """What is quoted: the median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def noise(self) -> float:
        """The largest factor between the two old engines; 1 is none."""
        return max(max(old / twin, twin / old) for old, twin in zip(self.old, self.twin, strict=True))

    @property
    def won(self) -> bool:
        cycles = zip(self.old, self.twin, self.new, strict=True)
        fastest = all(new > max(old, twin) for old, twin, new in cycles)  # follows from the ratios but for rounding
        return fastest and min(self.ratios) > self.noise

    def __str__(self) -> str:
        what = "one short request" if self.metric == "latency" else "all requests at once"
        return (
            f"{what}: {statistics.median(self.new):.4g} against {statistics.median((*self.old, *self.twin)):.4g} "
            f"tokens/s; {self.ratio:.3f} times (lowest of {len(self.ratios)}: {min(self.ratios):.3f}, "
            f"noise {self.noise:.3f})"
        )


def run_duel(
    old_dir: Path,
    new_dir: Path,
    *,
    model_dir: Path,
    vocab_size: int,
    metric: Metric,
    sandbox: Sandbox,
    progress: Progress,
    seed: int = 0,
    cycles: int = CYCLES,
) -> Duel:
    """Serve the old engine twice and the new one once, in the sandbox, and let them take turns.

    `latency`: output tokens/s of one request at a time, with a short prompt; `throughput`: of as many clients as the
    engine serves at once. Raises SubjectError if an engine does not start, or fails.
    """
    manifest = read_manifest(old_dir)
    workload = manifest.spec["workload"]
    settings = BenchSettings(threads=useful_threads(model_dir), clients=workload["max_concurrency"], seed=seed)
    settings = settings.within(workload["max_model_len"], workload["max_concurrency"])

    def subject(name: str, folder: Path) -> EngineSubject:
        launcher = sandboxed_launcher(
            sandbox, folder.resolve(), manifest.package, model_dir.resolve(), threads=settings.threads
        )
        return EngineSubject(name, launcher, threads=settings.threads)

    subjects = [subject("the old engine", old_dir), subject("the old engine again", old_dir)]
    subjects.append(subject("the new engine", new_dir))
    prompts = PromptMaker(model_dir, vocab_size, seed)
    with ExitStack() as stack:
        for one in subjects:
            progress.start(f"start {one.name}")
            stack.callback(one.stop)
            one.start()
            progress.done(f"start {one.name}")
        return take_turns(subjects, prompts, settings, metric, cycles)


def take_turns(
    subjects: Sequence[Subject], prompts: PromptMaker, settings: BenchSettings, metric: Metric, cycles: int
) -> Duel:
    """Measure (old, the same again, new), which are running. Each round begins with another one of them."""
    rounds = _warm_up(subjects, prompts, settings, metric, cycles)
    speeds: list[list[float]] = [[], [], []]
    for _ in range(cycles):
        best = [0.0, 0.0, 0.0]
        for number in range(rounds):
            asked = _take(prompts, settings, metric)
            for place in range(3):
                index = (number + place) % 3
                best[index] = max(best[index], _turn(subjects[index], asked, settings, metric))
        for kept, speed in zip(speeds, best, strict=True):
            kept.append(speed)
    old, twin, new = speeds
    return Duel(metric=metric, old=tuple(old), twin=tuple(twin), new=tuple(new))


def useful_threads(model_dir: Path) -> int:
    """All cores; one for a model so small that threads would only wait for each other."""
    weights = sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
    return 1 if weights <= _SMALL_BYTES else usable_cores()


def _warm_up(
    subjects: Sequence[Subject], prompts: PromptMaker, settings: BenchSettings, metric: Metric, cycles: int
) -> int:
    """A first turn each, the same for all, then a timed one; returns how many rounds fill a cycle."""
    first, second = _take(prompts, settings, metric), _take(prompts, settings, metric)
    for subject in subjects:
        _turn(subject, first, settings, metric)
    began = time.monotonic()
    for subject in subjects:
        _turn(subject, second, settings, metric)
    wanted = math.ceil(_CYCLE_S / (time.monotonic() - began))
    affordable = max(1, _MOST_PROMPTS // cycles // len(first))
    return min(max(_FEWEST_ROUNDS, min(wanted, _MOST_ROUNDS)), affordable)


def _take(prompts: PromptMaker, settings: BenchSettings, metric: Metric) -> list[list[int]]:
    if metric == "latency":
        return [prompts.take(min(settings.decode_prompt, _SHORT_PROMPT))]
    return [prompts.take(settings.load_prompt) for _ in range(settings.clients)]


def _turn(subject: Subject, asked: Sequence[list[int]], settings: BenchSettings, metric: Metric) -> float:
    """Tokens/s from the first request sent to the last arrival.

    Not 1 / TPOT: tokens that arrive late and together, because the client was slow to read or the server to send,
    would make that look fast, and the best round would be picked for it.
    """
    if metric == "throughput":
        return output_tokens_per_s(closed_loop(subject, asked, settings.clients, settings.load_tokens))
    return output_tokens_per_s([subject.run(asked[0], settings.decode_tokens)])
