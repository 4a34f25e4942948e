"""One benchmark: subjects take turns (A B A B …) with a reading of the machine's ceilings between any two turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.bench.ceiling import Ceiling, CeilingMeter
from metainfer.bench.comparison import Contestant, agreements, doubts, ratios
from metainfer.bench.environment import Noise, NoiseMeter, capture_environment
from metainfer.bench.figures import Turn, turn_figures
from metainfer.bench.goals import judge_goals
from metainfer.bench.metrics import Spread, tpot_ms, ttft_ms
from metainfer.bench.processes import own_cpu_s, tree_cpu_s, tree_memory
from metainfer.bench.prompts import PromptMaker
from metainfer.bench.report import BenchReport, BenchSettings, Memory, Missing, SubjectReport
from metainfer.bench.subject import Subject, SubjectError, brief, closed_loop
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
        self._contestants: list[Contestant] = []
        """The engine first, then the peers that are in the race."""
        self._gone_cpu_s = 0.0

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
            self._start_all(engine, peers, stack)
            noise_meter, cpu_before_s = NoiseMeter(), self._used_cpu_s()
            repeats = self._repeat(meter)
            noise = noise_meter.noise(self._used_cpu_s() - cpu_before_s)
            reports = [self._subject_report(contestant) for contestant in self._contestants]
        contestants = self._contestants
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

    def _start_all(self, engine: Subject, peers: Sequence[Subject], stack: ExitStack) -> None:
        """Start and warm up everyone whose first turn fits the budget; the engine gets one in any case."""
        self._contestants.append(self._start(engine, stack))
        for peer in peers:
            try:
                self._require_time(peer.name, "its start", 0.0)
                contestant = self._start(peer, stack)
                self._require_time(peer.name, "its first turn", contestant.expected_s)
            except SubjectError as error:
                self._drop(peer, error)
                continue
            self._contestants.append(contestant)

    def _require_time(self, name: str, what: str, needed_s: float) -> None:
        """Raise SubjectError unless the first turns of all so far and `needed_s` more end within the budget."""
        expected_s = sum(contestant.expected_s for contestant in self._contestants) + needed_s
        left_s = self._settings.budget_s - (time.monotonic() - self._began_s)
        if expected_s > left_s:
            raise SubjectError(
                f"{name}: {what} does not fit the budget of {self._settings.budget_s:.0f} s: the first turns take "
                f"about {expected_s:.0f} s and {max(0.0, left_s):.0f} s are left; give a larger budget"
            )

    def _start(self, subject: Subject, stack: ExitStack) -> Contestant:
        """Start a subject and warm it up; the warm-up is the same for all, and only tells how long a turn will take."""
        step, settings = f"start {subject.name}", self._settings
        self._progress.start(step)
        began_s = time.monotonic()
        stack.callback(subject.stop)
        subject.start()
        start_s = time.monotonic() - began_s
        prompts = self._next_prompts()
        decode = subject.run(prompts.decode, min(_WARM_UP_TOKENS, settings.decode_tokens))
        prefill = subject.run(prompts.prefill, 2)
        expected_ms = ttft_ms(decode) + tpot_ms(decode) * settings.decode_tokens + ttft_ms(prefill)
        if subject.concurrent:
            load_began_s = time.monotonic()
            closed_loop(subject, prompts.load, settings.clients, 2)
            requests_ms = settings.requests_per_client * settings.load_tokens * tpot_ms(decode)
            expected_ms += (time.monotonic() - load_began_s) * 1e3 + requests_ms
        self._progress.done(step, subject.info().mode)
        return Contestant(subject, start_s, expected_ms / 1e3)

    def _repeat(self, meter: CeilingMeter) -> int:
        """Rounds until all repeats are done or the next one would not fit the budget; returns how many were done."""
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
            self._round(meter)
            longest_s = max(longest_s, time.monotonic() - began_s)
            done += 1
            self._progress.done(step)
        return done

    def _round(self, meter: CeilingMeter) -> None:
        """One turn each, with the same prompts. A peer that fails is out."""
        prompts = self._next_prompts()
        for contestant in list(self._contestants):
            try:
                contestant.turns.append(self._turn(contestant, prompts, meter))
            except SubjectError as error:
                if contestant.subject.kind == "engine":
                    raise
                self._contestants.remove(contestant)
                self._drop(contestant.subject, error)

    def _turn(self, contestant: Contestant, prompts: _Prompts, meter: CeilingMeter) -> Turn:
        subject, settings = contestant.subject, self._settings
        others = [other for other in self._contestants if other is not contestant]
        before = self._ceilings[-1]
        began_s, idle_before_s = time.monotonic(), _trees_cpu_s(others)
        cpu_before_s = tree_cpu_s(subject.pid)
        decode = subject.run(prompts.decode, settings.decode_tokens)
        decode_s, decode_cpu_s = time.monotonic() - began_s, tree_cpu_s(subject.pid) - cpu_before_s
        prefill = subject.run(prompts.prefill, 2)
        load = closed_loop(subject, prompts.load, settings.clients, settings.load_tokens) if subject.concurrent else []
        idle_share = (_trees_cpu_s(others) - idle_before_s) / (time.monotonic() - began_s)
        self._bystander_share = max(self._bystander_share, idle_share)
        after = meter.take()
        self._ceilings.append(after)
        return Turn(decode, prefill, tuple(load), decode_cpu_s / decode_s, before, after)

    def _used_cpu_s(self) -> float:
        """CPU seconds of this process and of the subjects, those included that are out."""
        return own_cpu_s() + self._gone_cpu_s + _trees_cpu_s(self._contestants)

    def _next_prompts(self) -> _Prompts:
        settings, take = self._settings, self._prompts.take
        requests = settings.clients * settings.requests_per_client
        return _Prompts(
            decode=take(settings.decode_prompt),
            prefill=take(settings.prefill_prompt),
            load=[take(settings.load_prompt) for _ in range(requests)],
        )

    def _drop(self, subject: Subject, error: SubjectError) -> None:
        with contextlib.suppress(SubjectError):
            self._gone_cpu_s += tree_cpu_s(subject.pid)
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


def _trees_cpu_s(contestants: Sequence[Contestant]) -> float:
    return sum(tree_cpu_s(contestant.subject.pid) for contestant in contestants)
