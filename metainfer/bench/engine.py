"""`metainfer bench`: from an engine's folder to a report."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.bench.ceiling import CeilingMeter
from metainfer.bench.engine_subject import EngineSubject
from metainfer.bench.environment import usable_cores
from metainfer.bench.peers.transformers_peer import TransformersPeer
from metainfer.bench.prompts import PromptMaker
from metainfer.bench.report import BenchReport, BenchSettings, Missing
from metainfer.bench.run import run_bench
from metainfer.bench.servers import engine_launcher, sandboxed_launcher
from metainfer.bench.subject import Subject
from metainfer.errors import InputError
from metainfer.generate.manifest import Manifest, read_manifest
from metainfer.progress import Progress
from metainfer.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from metainfer.checkpoint.facts import ModelFacts

PEERS = ("transformers",)
_PROBE_PROMPT_TOKENS = 32


def bench_engine(
    engine_dir: Path,
    *,
    model_dir: Path,
    model: ModelFacts,
    peers: Sequence[str] = PEERS,
    settings: BenchSettings | None = None,
    goals: Mapping[str, float] | None = None,
    sandbox: Sandbox | None = None,
    meter: Callable[[int], CeilingMeter] = CeilingMeter,
    progress: Progress | None = None,
) -> BenchReport:
    """Measure the engine in `engine_dir` on the model folder `model_dir`, beside `peers`.

    `settings` default to the quick standard with a thread per usable core, and are shrunk to the engine's limits.
    With `sandbox` the engine's server runs in it, else as a plain subprocess. Raises InputError for an unknown peer,
    SubjectError if the engine fails. `meter`: see `run_bench`.
    """
    if unknown := sorted(set(peers) - set(PEERS)):
        raise InputError(f"--peers: {', '.join(unknown)} is not known; there is {', '.join(PEERS)}")
    # Servers and workers start in folders of their own.
    engine_dir, model_dir = engine_dir.resolve(), model_dir.resolve()
    manifest = read_manifest(engine_dir)
    settings = (settings or BenchSettings(threads=usable_cores())).within(*_limits(manifest))
    threads = settings.threads
    prompts = PromptMaker(model_dir, model.vocab_size, settings.seed)
    package = manifest.package
    if sandbox is None:
        launcher, where = engine_launcher(engine_dir, package, model_dir, threads=threads), "not sandboxed"
    else:
        launcher = sandboxed_launcher(sandbox, engine_dir, package, model_dir, threads=threads)
        where = "sandboxed" if sandbox.isolating else "not sandboxed"
    engine = EngineSubject(
        manifest.engine,
        launcher,
        threads=threads,
        version=manifest.input_hash[:12],
        weight_dtype=manifest.facts["weight_dtype"],
        kv_dtype=manifest.facts["kv_dtype"],
        mode=f"its own server, {where}, streamed completions over HTTP",
    )
    found, missing = _peers(peers, model_dir, prompts, settings)
    return run_bench(
        engine,
        found,
        model=model,
        prompts=prompts,
        settings=settings,
        goals=goals,
        missing=missing,
        meter=meter,
        progress=progress,
    )


def _peers(
    names: Sequence[str], model_dir: Path, prompts: PromptMaker, settings: BenchSettings
) -> tuple[list[Subject], list[Missing]]:
    """The peers that can be tried, and those that cannot, with the reason."""
    found: list[Subject] = []
    missing: list[Missing] = []
    for name in names:
        if importlib.util.find_spec(name) is None:
            missing.append(Missing(name=name, reason=f"the package {name} is not installed"))
            continue
        probe = prompts.take(min(_PROBE_PROMPT_TOKENS, settings.decode_prompt))
        found.append(TransformersPeer(model_dir, threads=settings.threads, probe_prompt=probe))
    return found, missing


def _limits(manifest: Manifest) -> tuple[int, int]:
    """(max_model_len, max_concurrency) of the engine, from the spec that it was made from."""
    workload = manifest.spec["workload"]
    return workload["max_model_len"], workload["max_concurrency"]
