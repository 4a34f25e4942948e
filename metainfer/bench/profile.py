"""Where an engine's time goes: wall time by unit and contract, while it decodes, prefills and serves many at once.

A unit's time is what passes between its entry and its exit, less the time of the units that it calls. torch and the
C++ kernels count for the unit that calls them, for that is whose file could call them otherwise. The HTTP server is
not in it: the engine's loop is driven as the server drives it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from metainfer.bench.duel import useful_threads
from metainfer.bench.prompts import PromptMaker
from metainfer.bench.report import BenchSettings
from metainfer.bench.subject import SubjectError
from metainfer.gates.subject import clean_subject
from metainfer.sandbox import Limits, Room, Sandbox

Phase = Literal["prefill", "decode", "load"]
_ROUNDS = 2
_WALL_S = 900.0
_OUT_BYTES = 1 << 20


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class UnitTime(_Record):
    """One unit's own time in one phase."""

    seconds: float = Field(allow_inf_nan=False)
    calls: int = Field(ge=0)
    """From other units or from outside."""


class PhaseTimes(_Record):
    """One phase, summed up over its requests."""

    wall_s: float = Field(gt=0, allow_inf_nan=False)
    """Of the engine's steps."""
    steps: int = Field(ge=1)
    tokens: int = Field(ge=0)
    units: dict[str, UnitTime]


class Profile(_Record):
    """All phases, and which contract each unit answers to."""

    phases: dict[Phase, PhaseTimes]
    contracts: dict[str, str]
    """Unit to contract."""
    threads: int

    def shares(self, phase: Phase) -> dict[str, float]:
        """Contract to its share of the phase's wall time, the hottest first."""
        times = self.phases[phase]
        whole = max(times.wall_s, sum(max(0.0, unit.seconds) for unit in times.units.values()))
        found = dict.fromkeys(self.contracts.values(), 0.0)
        for unit, time in times.units.items():
            found[self.contracts[unit]] += max(0.0, time.seconds) / whole
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def in_words(self, contract: str) -> list[str]:
        """The figures of one contract's units, a line per phase and unit."""
        lines = []
        for phase, times in self.phases.items():
            lines.append(f"{_PHASES[phase]}: {self.shares(phase)[contract]:.0%} of the time of all units")
            for unit, time in sorted(times.units.items()):
                if self.contracts[unit] == contract:
                    per_step = f"{time.seconds / times.steps * 1e3:.3g} ms and {time.calls / times.steps:.3g} calls"
                    lines.append(f"{_PHASES[phase]}, {unit}: {per_step} per step, units that it calls left out")
        return lines


_PHASES: dict[Phase, str] = {
    "prefill": "reading a prompt",
    "decode": "decoding one request",
    "load": "serving as many requests as fit",
}
_REPORT = TypeAdapter(dict[Phase, PhaseTimes])


def profile_engine(engine_dir: Path, model_dir: Path, vocab_size: int, sandbox: Sandbox, seed: int = 0) -> Profile:
    """Run the engine in the sandbox on prompts of its own length. Raises SubjectError if it fails, or says nonsense."""
    with clean_subject(engine_dir) as subject:
        manifest = subject.manifest
        threads = useful_threads(model_dir)
        plan = {
            "package": manifest.package,
            "threads": threads,
            "units": {unit.name: unit.module for unit in manifest.units},
            **_work(manifest.spec["workload"], PromptMaker(model_dir, vocab_size, seed), threads),
        }
        with sandbox.room({"engine": subject.folder, "model": model_dir.resolve()}) as room:
            plan |= {"engine": room.path("engine"), "model": room.path("model")}
            (room.job / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
            room.give(room.job)
            command = [room.python, "-m", "metainfer.bench.profile_probe"]
            command += [room.path("job", "plan.json"), room.path("job", "out.json")]
            result = room.run(command, env={"OMP_NUM_THREADS": str(threads)}, limits=Limits(wall_s=_WALL_S))
            if not result.ok:
                raise SubjectError(f"the engine failed under the profiler: it {result.explain()}")
            phases = _read(room)
    contracts = {unit.name: unit.contract for unit in manifest.units}
    if strangers := {unit for times in phases.values() for unit in times.units} - contracts.keys():
        raise SubjectError(f"the profile names units that the engine does not have: {', '.join(sorted(strangers))}")
    return Profile(phases=phases, contracts=contracts, threads=threads)


def _work(workload: Mapping[str, Any], prompts: PromptMaker, threads: int) -> dict[str, Any]:
    """What the probe asks of the engine: what the benchmark asks, shrunk to the engine's limits."""
    limits = workload["max_model_len"], workload["max_concurrency"]
    settings = BenchSettings(threads=threads, clients=workload["max_concurrency"]).within(*limits)
    return {
        "warm_up": [prompts.take(settings.load_prompt)],
        "decode": {
            "prompts": [prompts.take(settings.decode_prompt) for _ in range(_ROUNDS)],
            "tokens": settings.decode_tokens,
        },
        "load": {
            "prompts": [[prompts.take(settings.load_prompt) for _ in range(settings.clients)] for _ in range(_ROUNDS)],
            "tokens": settings.load_tokens,
        },
    }


def _read(room: Room) -> dict[Phase, PhaseTimes]:
    path = room.job / "out.json"
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _OUT_BYTES:
        raise SubjectError("the profiler's report is missing, a link, or too large")
    try:
        phases = _REPORT.validate_json(path.read_bytes())
    except ValidationError as error:
        raise SubjectError(f"the profiler's report cannot be read: {error}") from error
    if missing := {"prefill", "decode", "load"} - phases.keys():
        raise SubjectError(f"the profiler's report lacks {', '.join(sorted(missing))}")
    return phases
