"""Runs an engine under a stopwatch and writes down how long each of its units was at work itself.

    python -m metainfer.bench.profile_probe PLAN OUT

PLAN is JSON (see `metainfer.bench.profile`), OUT becomes JSON. It runs inside the sandbox, beside code that nobody has
reviewed: what it writes says where to look, and proves nothing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WARM_UP_TOKENS = 8


class Stopwatch:
    """Wall time between entry and exit of each unit's functions, less what other units took meanwhile.

    What a unit calls that is no unit (private helpers, torch, C++ kernels) is the unit's own time.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._open: list[list[Any]] = []
        """Per open call: unit, and the seconds of the calls within it."""
        self._thread = threading.get_ident()

    def reset(self) -> None:
        self.seconds.clear()
        self.calls.clear()

    def timed(self, unit: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            entered = not self._open or self._open[-1][0] != unit
            self._open.append([unit, 0.0])
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - began
                within = self._open.pop()[1]
                self.seconds[unit] = self.seconds.get(unit, 0.0) + took - within
                self.calls[unit] = self.calls.get(unit, 0) + entered
                if self._open:
                    self._open[-1][1] += took

        return call


def watch(units: dict[str, str], package: str, root: Path, stopwatch: Stopwatch) -> None:
    """Put the stopwatch around all units, in every module that has imported them. `units`: name to module."""
    for home in {*units.values(), "engine"}:
        importlib.import_module(f"{package}.{home}")
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{package}.")]
    for unit, home in units.items():
        found = getattr(sys.modules[f"{package}.{home}"], unit)
        if inspect.isclass(found):
            _watch_class(unit, found, root, stopwatch)
        elif _can_be_timed(found, root):
            replacement = stopwatch.timed(unit, found)
            for module in modules:
                for name, value in list(vars(module).items()):
                    if value is found:
                        setattr(module, name, replacement)


def _watch_class(unit: str, found: type, root: Path, stopwatch: Stopwatch) -> None:
    for name, value in list(vars(found).items()):
        if isinstance(value, classmethod | staticmethod):
            if _can_be_timed(value.__func__, root):
                setattr(found, name, type(value)(stopwatch.timed(unit, value.__func__)))
        elif inspect.isfunction(value) and name != "__new__" and _can_be_timed(value, root):
            setattr(found, name, stopwatch.timed(unit, value))


def _can_be_timed(function: Any, root: Path) -> bool:
    """Plain functions from the engine's own files. What is awaited or iterated is at work when nobody looks."""
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    lazily = inspect.iscoroutinefunction(inner) or inspect.isgeneratorfunction(inner)
    return code is not None and not lazily and Path(code.co_filename).is_relative_to(root)


class Probe:
    """One engine under the stopwatch."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        root = Path(plan["engine"])
        self.stopwatch = Stopwatch()
        watch(plan["units"], plan["package"], root, self.stopwatch)
        module = importlib.import_module(f"{plan['package']}.engine")
        self._params = importlib.import_module(f"{plan['package']}.sequence").SamplingParams
        self.engine = module.LLMEngine(Path(plan["model"]), num_threads=plan["threads"])
        self.phases: dict[str, dict[str, Any]] = {}

    def main(self) -> None:
        self.run(self.plan["warm_up"], WARM_UP_TOKENS)
        self.phases.clear()
        for prompt in self.plan["decode"]["prompts"]:
            self.run([prompt], self.plan["decode"]["tokens"])
        for prompts in self.plan["load"]["prompts"]:
            self.run(prompts, self.plan["load"]["tokens"], "load")

    def run(self, prompts: list[list[int]], tokens: int, phase: str = "") -> None:
        """Answer all prompts together. Without a phase, steps up to the first token are `prefill`, others `decode`."""
        params = self._params(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        for prompt in prompts:
            self.engine.add_request(list(prompt), params)
        begun = False
        while self.engine.has_work:
            self.stopwatch.reset()
            began = time.perf_counter()
            outputs = self.engine.step()
            took = time.perf_counter() - began
            self._add(phase or ("decode" if begun else "prefill"), took, len(outputs))
            begun = begun or bool(outputs)

    def _add(self, phase: str, took: float, tokens: int) -> None:
        kept = self.phases.setdefault(phase, {"wall_s": 0.0, "steps": 0, "tokens": 0, "units": {}})
        kept["wall_s"] += took
        kept["steps"] += 1
        kept["tokens"] += tokens
        for unit, seconds in self.stopwatch.seconds.items():
            entry = kept["units"].setdefault(unit, {"seconds": 0.0, "calls": 0})
            entry["seconds"] += seconds
            entry["calls"] += self.stopwatch.calls[unit]


def _run(plan_file: str, out_file: str) -> None:
    plan = json.loads(Path(plan_file).read_bytes())
    sys.path.insert(0, plan["engine"])
    probe = Probe(plan)
    probe.main()
    Path(out_file).write_text(json.dumps(probe.phases), encoding="utf-8")


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2])
