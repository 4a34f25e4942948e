"""Commands about one engine's folder: make it, verify it, judge it, measure it, serve it, explain it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metainfer.commands.context import Workspace, cache_root
from metainfer.commands.named import find_engine
from metainfer.commands.run import SpecPath, Unsandboxed
from metainfer.console import make_reporter
from metainfer.errors import ExitCode, InputError

if TYPE_CHECKING:
    from metainfer.checkpoint.sources import ModelFolder
    from metainfer.generate.manifest import Manifest
    from metainfer.spec.models import Spec

EngineDir = Annotated[Path, typer.Argument(help="An engine's folder, or its name under engines/.")]
CkbRoot = Annotated[Path, typer.Option("--ckb", help="The knowledge base to use.")]


def generate(
    spec: SpecPath,
    out: Annotated[Path | None, typer.Option(help="Where to write the engine; default: engines/<name>.")] = None,
    ckb: CkbRoot = Path("ckb"),
) -> None:
    """Generate an engine from the work tree's knowledge, without gates or a pull request: for trying knowledge out."""
    from metainfer.generate.specializer import generate as make
    from metainfer.pipeline.prepare import prepare

    root = Workspace.find().root
    with make_reporter(as_json=False) as reporter:
        prepared = prepare(spec, ckb, root, cache_root(), reporter)
        if prepared.spec.generation.asks_a_model:
            raise InputError(f"{spec}: a model is to take part in this engine, which `metainfer run` sees to")
        engine = make(prepared.inputs)
    target = out or Path("engines") / prepared.spec.name
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{target} is not empty; name another folder with --out")
    engine.write(target)
    made = engine.manifest
    typer.echo(f"{target}: {made.code_lines} lines of code, inputs {made.input_hash[:12]}, not judged yet")


def verify(engine: EngineDir, ckb: CkbRoot = Path("ckb")) -> None:
    """Regenerate an engine from its manifest and compare every byte. Exit code 1 if anything differs."""
    from metainfer.generate.regenerate import differences, regenerate

    folder = find_engine(engine)
    _spec(folder, _manifest(folder))
    complaints = differences(folder, regenerate(folder, ckb))
    for complaint in complaints:
        typer.echo(f"{folder}/{complaint}")
    if complaints:
        typer.echo("this engine is not what its manifest's inputs make; regenerate it with `metainfer run`")
        raise typer.Exit(ExitCode.RED)
    typer.echo(f"{folder}: every byte is as generated")


def gate(
    name: Annotated[str, typer.Argument(help="spec, static, unit, numerics or serving.")],
    engine: EngineDir,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
    ckb: CkbRoot = Path("ckb"),
    allow_unsandboxed: Unsandboxed = False,
) -> None:
    """Run one gate on an engine's folder and print its report as JSON. Exit code 1 unless it passes."""
    from metainfer.gates.runner import run_gates
    from metainfer.sandbox.sandbox import Sandbox

    folder = find_engine(engine)
    manifest = _manifest(folder)
    spec = _spec(folder, manifest)
    with make_reporter(as_json=False, aside=True) as reporter:
        reports = run_gates(
            folder,
            spec=spec,
            model=_model(manifest),
            ckb_root=ckb,
            sandbox=Sandbox(allow_unsandboxed=allow_unsandboxed),
            progress=reporter,
            seed=seed,
            gates=[name],
        )
    for report in reports:
        typer.echo(report.model_dump_json(indent=2))
    raise typer.Exit(ExitCode.OK if reports and all(report.passed for report in reports) else ExitCode.RED)


def bench(
    engine: EngineDir,
    peers: Annotated[str, typer.Option(help="Comma-separated; empty for none.")] = "transformers",
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each subject.")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of every subject; default: all cores.")] = None,
    budget: Annotated[float, typer.Option(min=1, help="Seconds after which no further repeat begins.")] = 300.0,
    quick: Annotated[bool, typer.Option(help="A smoke test; its figures are too short to quote.")] = False,
    sandbox: Annotated[bool, typer.Option(help="Serve the engine in the sandbox.")] = False,
) -> None:
    """Measure an engine beside peers and the machine's ceilings, interleaved in one run. The last line is JSON."""
    from metainfer.bench.engine import bench_engine
    from metainfer.bench.environment import usable_cores
    from metainfer.bench.render import render
    from metainfer.bench.report import BenchSettings
    from metainfer.sandbox.sandbox import Sandbox

    folder = find_engine(engine)
    manifest = _manifest(folder)
    spec = _spec(folder, manifest)
    model = _model(manifest)
    count = threads or usable_cores()
    settings = (
        BenchSettings.quick(threads=count, budget_s=budget)
        if quick
        else BenchSettings(threads=count, repeats=repeats, budget_s=budget)
    )
    with make_reporter(as_json=False) as reporter:
        report = bench_engine(
            folder,
            model_dir=model.path,
            model=model.facts,
            peers=[peer for peer in peers.split(",") if peer],
            settings=settings,
            goals={name: value for name, value in spec.goals.model_dump().items() if value is not None},
            sandbox=Sandbox() if sandbox else None,
            progress=reporter,
        )
    typer.echo(render(report), nl=False)


def serve(
    engine: EngineDir,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind.")] = 8000,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: all cores.")] = None,
) -> None:
    """Serve a merged engine: the same process as `python -m <package> serve`."""
    folder = find_engine(engine)
    manifest = _manifest(folder)
    arguments = [sys.executable, "-m", manifest.package, "serve", "--model", str(_model(manifest).path)]
    arguments += ["--host", host, "--port", str(port)]
    arguments += ["--threads", str(threads)] if threads else []
    environment = {**os.environ, "PYTHONPATH": str(folder.resolve()), "PYTHONDONTWRITEBYTECODE": "1"}
    os.execve(sys.executable, arguments, environment)


def explain(place: Annotated[str, typer.Argument(help="FILE:LINE in an engine.")], ckb: CkbRoot = Path("ckb")) -> None:
    """Go from a line of an engine to its unit, contract and evidence."""
    from metainfer.pipeline.explain import explain_line

    file, _, line = place.rpartition(":")
    if not file or not line.isdigit():
        raise InputError(f"{place!r}: write FILE:LINE, e.g. engines/name/package/model.py:42")
    typer.echo(explain_line(Path(file), int(line), ckb))


def _manifest(folder: Path) -> Manifest:
    from metainfer.generate.manifest import read_manifest

    return read_manifest(folder)


def _spec(folder: Path, manifest: Manifest) -> Spec:
    """The spec that the engine was made from. InputError naming the manifest and the key."""
    from pydantic import ValidationError

    from metainfer.generate.manifest import MANIFEST_NAME
    from metainfer.spec.models import Spec

    try:
        return Spec.model_validate(manifest.spec)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["spec", *map(str, first["loc"])])
        raise InputError(
            f"{folder / MANIFEST_NAME}: {key}: {first['msg']}; the manifest was changed by hand, or written by another "
            "version: generate the engine again with `metainfer run`"
        ) from error


def _model(manifest: Manifest) -> ModelFolder:
    """The engine's model in the cache. InputError saying how to get it there."""
    from metainfer.checkpoint.facts import read_facts
    from metainfer.checkpoint.sources import ModelFolder

    path = cache_root() / "models" / manifest.model.digest.removeprefix("sha256:")
    if not path.is_dir():
        raise InputError(
            f"the model {manifest.model.digest} is not in the cache; "
            f"get it with `metainfer model fetch {manifest.spec_path}`"
        )
    return ModelFolder(path, manifest.model.digest, read_facts(path))
