"""One benchmark: subjects take turns (A B A B …) with a reading of the machine's ceilings between any two turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.bench.ceiling import Ceiling, CeilingMeter
from metainfer.bench.comparison import Contestant, agreements, doubts, ratios
from metainfer.bench.environment import Noise, NoiseMeter, capture_environment
from metainfer.bench.figures import Turn, turn_figures
from metainfer.bench.goals import judge_goals
from metainfer.bench.metrics import Spread, Timeline
from metainfer.bench.processes import own_cpu_s, tree_cpu_s, tree_memory
from metainfer.bench.prompts import PromptMaker
from metainfer.bench.report import BenchReport, BenchSettings, Memory, Missing, SubjectReport
from metainfer.bench.subject import Subject, SubjectError, brief
from metainfer.progress import Progress, Silent

if TYPE_CHECKING:
    from metainfer.checkpoint.facts import ModelFacts

_BYSTANDER_LIMIT = 0.02
_FOREIGN_LIMIT = 0.05
_STEAL_LIMIT = 0.02
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class _Prompts:
    """The prompts of one repeat, the same for every subject."""

    decode: list[int]
    prefill: list[int]
    load: list[list[int]]


def run_bench(
    engine: Subject,
    peers: Sequence[Subject],
    *,
    model: ModelFacts,
    prompts: PromptMaker,
    settings: BenchSettings,
    goals: Mapping[str, float] | None = None,
    missing: Sequence[Missing] = (),
    meter: Callable[[int], CeilingMeter] = CeilingMeter,
    progress: Progress | None = None,
) -> BenchReport:
    """Measure `engine` beside `peers` and report.

    A peer that fails goes into the report's `missing`, after those given in `missing` (peers that could not even be
    set up); a failing engine raises SubjectError. `meter` makes the reader of ceilings for a number of threads.
    """
    return _Bench(settings, model, prompts, progress or Silent(), list(missing)).run(engine, peers, goals or {}, meter)


class _Bench:
    """The state of one run."""

    def __init__(
        self,
        settings: BenchSettings,
        model: ModelFacts,
        prompts: PromptMaker,
        progress: Progress,
        missing: list[Missing],
    ) -> None:
        self._settings = settings
        self._model = model
        self._prompts = prompts
        self._progress = progress
        self._missing = missing
        self._began_s = time.monotonic()
        self._ceilings: list[Ceiling] = []
        self._warnings: list[str] = []
        self._bystander_share = 0.0

    def run(
        self,
        engine: Subject,
        peers: Sequence[Subject],
        goals: Mapping[str, float],
        make_meter: Callable[[int], CeilingMeter],
    ) -> BenchReport:
        environment = capture_environment()
        with ExitStack() as stack:
            meter = stack.enter_context(make_meter(self._settings.threads))
            self._warnings += meter.notes
            contestants = self._start_all(engine, peers, stack)
            noise_meter, cpu_before_s = NoiseMeter(), _used_cpu_s(contestants)
            contestants, repeats = self._repeat(contestants, meter)
            noise = noise_meter.noise(_used_cpu_s(contestants) - cpu_before_s)
            reports = [self._subject_report(contestant) for contestant in contestants]
        agreed, silent = agreements(contestants, self._prompts)
        compared = ratios(contestants, reports)
        warnings = [
            *self._warnings,
            *self._disturbances(noise),
            *(f"the tokens of {peer} could not be compared: there is no tokenizer" for peer in silent),
            *doubts(contestants, reports, environment),
        ]
        return BenchReport(
            engine=engine.name,
            settings=self._settings,
            prompts=self._prompts.kind,
            repeats_done=repeats,
            environment=environment,
            noise=noise,
            ceilings=tuple(self._ceilings),
            subjects=tuple(reports),
            missing=tuple(self._missing),
            ratios=compared,
            agreements=agreed,
            goals=judge_goals(goals, reports[0], compared),
            warnings=tuple(warnings),
            seconds=time.monotonic() - self._began_s,
        )

    def _disturbances(self, noise: Noise) -> list[str]:
        """Who else used the cores while subjects were measured."""
        found = []
        if noise.foreign_share > _FOREIGN_LIMIT:
            found.append(f"other processes used {noise.foreign_share:.0%} of the machine's cores meanwhile")
        if noise.steal_share > _STEAL_LIMIT:
            found.append(f"the hypervisor gave {noise.steal_share:.0%} of the cores' time to other guests")
        if self._bystander_share > _BYSTANDER_LIMIT:
            found.append(f"waiting subjects used up to {self._bystander_share:.0%} of a core")
        return found

    def _start_all(self, engine: Subject, peers: Sequence[Subject], stack: ExitStack) -> list[Contestant]:
        """Start and warm up everyone; every subject gets the same warm-up, which is not measured."""
        contestants = [self._start(engine, stack)]
        for peer in peers:
            try:
                contestants.append(self._start(peer, stack))
            except SubjectError as error:
                self._drop(peer, error)
        return contestants

    def _start(self, subject: Subject, stack: ExitStack) -> Contestant:
        step = f"start {subject.name}"
        self._progress.start(step)
        began_s = time.monotonic()
        stack.callback(subject.stop)
        subject.start()
        start_s = time.monotonic() - began_s
        prompts = self._next_prompts()
        subject.run(prompts.decode, min(_WARM_UP_TOKENS, self._settings.decode_tokens))
        subject.run(prompts.prefill, 2)
        if subject.concurrent:
            _closed_loop(subject, prompts.load, self._settings.clients, 2)
        self._progress.done(step, subject.info().mode)
        return Contestant(subject, start_s)

    def _repeat(self, contestants: list[Contestant], meter: CeilingMeter) -> tuple[list[Contestant], int]:
        """Turns until all repeats are done or the next one would not fit the budget."""
        longest_s = 0.0
        done = 0
        self._ceilings.append(meter.take())
        while done < self._settings.repeats:
            began_s = time.monotonic()
            if done and began_s - self._began_s + longest_s > self._settings.budget_s:
                wanted, budget_s = self._settings.repeats, self._settings.budget_s
                self._warnings.append(f"the budget of {budget_s:.0f} s ended after {done} of {wanted} repeats")
                break
            step = f"repeat {done + 1} of {self._settings.repeats}"
            self._progress.start(step)
            contestants = self._round(contestants, meter)
            longest_s = max(longest_s, time.monotonic() - began_s)
            done += 1
            self._progress.done(step)
        return contestants, done

    def _round(self, contestants: list[Contestant], meter: CeilingMeter) -> list[Contestant]:
        """One turn each, with the same prompts. Returns those still in the race."""
        prompts = self._next_prompts()
        remaining = []
        for contestant in contestants:
            others = [other for other in contestants if other is not contestant]
            try:
                contestant.turns.append(self._turn(contestant.subject, others, prompts, meter))
            except SubjectError as error:
                if contestant.subject.kind == "engine":
                    raise
                self._drop(contestant.subject, error)
                continue
            remaining.append(contestant)
        return remaining

    def _turn(self, subject: Subject, others: Sequence[Contestant], prompts: _Prompts, meter: CeilingMeter) -> Turn:
        settings = self._settings
        before = self._ceilings[-1]
        began_s, idle_before_s = time.monotonic(), _trees_cpu_s(others)
        cpu_before_s = tree_cpu_s(subject.pid)
        decode = subject.run(prompts.decode, settings.decode_tokens)
        decode_s, decode_cpu_s = time.monotonic() - began_s, tree_cpu_s(subject.pid) - cpu_before_s
        prefill = subject.run(prompts.prefill, 2)
        load = _closed_loop(subject, prompts.load, settings.clients, settings.load_tokens) if subject.concurrent else []
        idle_share = (_trees_cpu_s(others) - idle_before_s) / (time.monotonic() - began_s)
        self._bystander_share = max(self._bystander_share, idle_share)
        after = meter.take()
        self._ceilings.append(after)
        return Turn(decode, prefill, tuple(load), decode_cpu_s / decode_s, before, after)

    def _next_prompts(self) -> _Prompts:
        settings, take = self._settings, self._prompts.take
        requests = settings.clients * settings.requests_per_client
        return _Prompts(
            decode=take(settings.decode_prompt),
            prefill=take(settings.prefill_prompt),
            load=[take(settings.load_prompt) for _ in range(requests)],
        )

    def _drop(self, subject: Subject, error: SubjectError) -> None:
        subject.stop()
        missing = Missing(name=subject.name, reason=brief(str(error)))
        self._missing.append(missing)
        self._progress.note(f"{subject.name} is out: {missing.reason}")

    def _subject_report(self, contestant: Contestant) -> SubjectReport:
        info = contestant.subject.info()
        rows = [turn_figures(turn, info, self._model) for turn in contestant.turns]
        names = [name for name in rows[0] if all(name in row for row in rows)]
        memory = tree_memory(contestant.subject.pid)
        return SubjectReport(
            info=info,
            start_s=contestant.start_s,
            figures={name: Spread.of([row[name] for row in rows]) for name in names},
            memory=memory and Memory(peak_rss_bytes=memory.peak_rss_bytes, private_bytes=memory.private_bytes),
        )


def _closed_loop(subject: Subject, prompts: Sequence[list[int]], clients: int, tokens: int) -> list[Timeline]:
    """`clients` at once, each with its share of the prompts, one after the other."""

    def client(share: Sequence[list[int]]) -> list[Timeline]:
        return [subject.run(prompt, tokens) for prompt in share]

    with ThreadPoolExecutor(clients) as pool:
        results = list(pool.map(client, [prompts[index::clients] for index in range(clients)]))
    return [timeline for timelines in results for timeline in timelines]


def _trees_cpu_s(contestants: Sequence[Contestant]) -> float:
    return sum(tree_cpu_s(contestant.subject.pid) for contestant in contestants)


def _used_cpu_s(contestants: Sequence[Contestant]) -> float:
    """CPU seconds of this process and of the subjects."""
    return own_cpu_s() + _trees_cpu_s(contestants)
