"""`metainfer run`: from a spec to a pull request. Also `demo` and `doctor`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metainfer.commands.context import Workspace, cache_root
from metainfer.console import make_reporter
from metainfer.errors import ExitCode, InputError

if TYPE_CHECKING:
    from metainfer.pipeline.agents import AgentAccess
    from metainfer.pipeline.run import RunResult

SpecPath = Annotated[Path, typer.Argument(help="The spec, e.g. specs/name.yaml.")]
ForgeOption = Annotated[
    str | None,
    typer.Option("--forge", help="A bare repository, or github:OWNER/NAME; default: git's metainfer.forge."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object per event; the result is the last line.")]
Unsandboxed = Annotated[
    bool, typer.Option(help="Run the gates without a sandbox where none can be had; the pull request says so.")
]


def run(
    spec: SpecPath,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen; change nothing.")] = False,
    regenerate: Annotated[
        bool, typer.Option("--regenerate", help="Go on although nothing changed, or although a person stopped the bot.")
    ] = False,
    bench: Annotated[bool, typer.Option(help="Measure the engine, beside a peer.")] = True,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of the benchmark.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the gates' random inputs.")] = 0,
    backend: Annotated[str | None, typer.Option(help="specializer or agents; default: as the spec says.")] = None,
    model: Annotated[str | None, typer.Option(help="The model that writes units, as its endpoint names it.")] = None,
    base_url: Annotated[
        str | None, typer.Option(envvar="METAINFER_BASE_URL", help="An OpenAI-compatible endpoint, up to /v1.")
    ] = None,
    contract: Annotated[list[str] | None, typer.Option(help="Write only this contract's units; repeatable.")] = None,
    reference: Annotated[str | None, typer.Option(help="What the model may see: none, exemplars, source:PATH.")] = None,
    roles: Annotated[
        str | None, typer.Option(help="Who takes part beside the implementer: planner,reviewer,consolidator or none.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Repairs of a unit from what was found in it.")] = None,
    samples: Annotated[int | None, typer.Option(help="Fresh attempts after those.")] = None,
    optimise: Annotated[
        bool | None,
        typer.Option("--optimise/--no-optimise", help="Ask the model for faster variants of the hottest units."),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(help="US dollars per million tokens, INPUT,OUTPUT; default: as listed; a local endpoint is free."),
    ] = None,
    propose: Annotated[
        list[Path] | None, typer.Option(help="Knowledge to propose in the same pull request, as JSON; repeatable.")
    ] = None,
    allow_unsandboxed: Unsandboxed = False,
    as_json: JsonOption = False,
    forge: ForgeOption = None,
) -> None:
    """Generate the engine of a spec, prove it, measure it, and propose it. Again: does nothing."""
    from metainfer.forge.setup import open_forge
    from metainfer.pipeline.run import RunRequest
    from metainfer.pipeline.run import run as run_pipeline
    from metainfer.spec.load import refuse_machine

    refuse_machine()
    workspace = Workspace.find()
    given: dict[str, Any] = {"backend": backend, "model": model, "contracts": contract, "reference": reference}
    given |= {"rounds": rounds, "samples": samples, "optimise": optimise}
    request = RunRequest(
        spec_path=spec,
        repo_root=workspace.root,
        state=workspace.state,
        cache=cache_root(),
        dry_run=dry_run,
        regenerate=regenerate,
        allow_unsandboxed=allow_unsandboxed,
        bench=bench,
        repeats=repeats,
        seed=seed,
        agents=agent_access(base_url, price) if base_url else None,
        generation={name: value for name, value in given.items() if value is not None and value != []} | _roles(roles),
        proposals=propose or (),
    )
    with make_reporter(as_json=as_json) as reporter:
        result = run_pipeline(request, open_forge(workspace.root, forge), reporter)
        reporter.result(describe(result), as_data(result))
    raise typer.Exit(exit_code(result))


def _roles(text: str | None) -> dict[str, Any]:
    """The roles of `--roles`, as the spec has them; empty if it was not given."""
    from typing import get_args

    from metainfer.spec.models import AgentRole

    if text is None:
        return {}
    names = [] if text.strip() == "none" else [name.strip() for name in text.split(",")]
    known = get_args(AgentRole)
    if wrong := [name for name in names if name not in known] or [name for name in names if names.count(name) > 1]:
        raise InputError(f"--roles {text!r}: {wrong[0]!r}; write none, or each once of {','.join(known)}")
    return {"roles": names}


def agent_access(base_url: str, price: str | None, concurrency: int = 2) -> AgentAccess:
    """Where the model is, its key from the environment, and its price."""
    from metainfer.agents.client import api_key
    from metainfer.agents.prices import parse_price
    from metainfer.pipeline.agents import AgentAccess

    return AgentAccess(base_url, api_key(), concurrency, parse_price(price) if price else None)


def exit_code(result: RunResult) -> ExitCode:
    """Green and unchanged are fine; red is red; a person in the way is a conflict, and so is knowledge left behind."""
    if result.status == "red":
        return ExitCode.RED
    stopped = result.outcome is not None and result.outcome.status in ("blocked", "closed")
    if result.status == "unchanged" and (stopped or result.knowledge.files):
        return ExitCode.CONFLICT
    return ExitCode.OK


def describe(result: RunResult) -> str:
    """The outcome for people: a verdict table, the pull request, and the next command."""
    from rich.markup import escape

    lines = []
    for report in result.gates:
        colour = "green" if report.passed else "red"
        figures = ", ".join(f"{name} {_shown(value)}" for name, value in list(report.figures.items())[:4])
        lines.append(f"  [{colour}]{report.verdict:<7}[/] {report.gate:<12}{report.seconds:7.1f} s  {escape(figures)}")
        for finding in report.findings[:5]:
            lines.append(f"            {escape(f'{finding.where} {finding.message}'.strip())}")
        if not report.passed:
            lines.append(f"            reproduce: {escape(report.reproduce)}")
    if result.bench:
        lines += _bench_lines(result)
    if result.optimised:
        tried = [f"{one.contract}: {one.in_words()}" for one in result.optimised.tried]
        lines += [f"  {escape(words)}" for words in tried or [result.optimised.note]]
    lines += [f"  {unit:<18} {escape(origin)}" for unit, origin in result.plan.items()]
    for change in result.knowledge.changes:
        mark = "[red]WEAKENS[/] " if change.weakens else ""
        lines.append(f"  {mark}{escape(change.path)}: {escape(change.words)}")
    number = result.outcome.number if result.outcome else None
    told = number is None or re.search(rf"pull request #{number}\b", result.message)
    where = "" if told else f"pull request #{number}: "
    lines.append(f"[bold]{result.engine}[/]: {result.status}. {where}{escape(result.message)}")
    if result.run_folder:
        lines.append(f"run folder: {escape(str(result.run_folder))}")
    if number and result.status in ("published", "unchanged"):
        lines.append(f"next: metainfer pr show {number}")
    return "\n".join(lines)


def _bench_lines(result: RunResult) -> list[str]:
    from rich.markup import escape

    assert result.bench is not None
    lines = [f"  {subject.info.name}: " + ", ".join(
        f"{name} {spread.median:.4g} ({spread.min:.4g}…{spread.max:.4g})"
        for name, spread in subject.figures.items()
        if name in ("decode_tokens_per_s", "decode_mbu", "prefill_ttft_ms", "load_tokens_per_s")
    ) for subject in result.bench.subjects]  # fmt: skip
    for goal in result.bench.goals:
        measured = "nothing" if goal.measured is None else _shown(goal.measured)
        lines.append(f"  {goal.goal}: wanted {goal.wanted:g}, measured {measured}")
    # Last, beside the verdict: on a busy machine these lines, and not the engine, are why a goal was missed.
    lines += [f"  doubtful: {escape(warning)}" for warning in result.bench.warnings]
    if result.bench.warnings and not all(goal.met for goal in result.bench.goals):
        lines.append("  a goal may have been missed because of that: run again when the machine does nothing else")
    return lines


def as_data(result: RunResult) -> dict[str, Any]:
    """The outcome for programs."""
    return {
        "status": result.status,
        "engine": result.engine,
        "input_hash": result.input_hash,
        "message": result.message,
        "pull_request": result.outcome.number if result.outcome else None,
        "forge": _on_forge(result),
        "run_folder": str(result.run_folder) if result.run_folder else None,
        "gates": {report.gate: report.verdict for report in result.gates},
        "bench": result.bench.model_dump(mode="json") if result.bench else None,
        "optimise": result.optimised.model_dump(mode="json") if result.optimised else None,
        "plan": dict(result.plan),
        "knowledge": [asdict(change) for change in result.knowledge.changes],
    }


def _on_forge(result: RunResult) -> str | None:
    """What became of the pull request, or, where the run was only planned, what would."""
    from metainfer.forge.protocol import Status

    if result.outcome is None or result.status != "planned":
        return result.outcome.status if result.outcome else None
    verbs = {Status.CREATED: "would-create", Status.UPDATED: "would-update"}
    return verbs.get(result.outcome.status, "would-regenerate")  # nothing else is planned unless it was asked for


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def submit(
    spec: SpecPath,
    unit: Annotated[str, typer.Argument(help="A unit, e.g. RMSNorm; the file makes all units of its contract.")],
    file: Annotated[Path, typer.Argument(help="A Python file, written elsewhere.")],
    also: Annotated[
        list[str] | None, typer.Option(metavar="UNIT=FILE", help="Another one in the same engine; repeatable.")
    ] = None,
    bench: Annotated[bool, typer.Option(help="Measure the engine, beside a peer.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the gates' random inputs.")] = 0,
    as_json: JsonOption = False,
    forge: ForgeOption = None,
) -> None:
    """Put a unit that was written elsewhere through the same checks and gates, and propose the engine with it."""
    from metainfer.forge.setup import open_forge
    from metainfer.pipeline.run import RunRequest
    from metainfer.pipeline.run import run as run_pipeline

    workspace = Workspace.find()
    request = RunRequest(
        spec_path=spec,
        repo_root=workspace.root,
        state=workspace.state,
        cache=cache_root(),
        bench=bench,
        seed=seed,
        submitted={unit: file} | _more_files(also or ()),
    )
    with make_reporter(as_json=as_json) as reporter:
        result = run_pipeline(request, open_forge(workspace.root, forge), reporter)
        reporter.result(describe(result), as_data(result))
    raise typer.Exit(exit_code(result))


def _more_files(also: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in also:
        unit, equals, file = text.partition("=")
        if not equals or not unit or not file or unit in found:
            raise InputError(f"--also {text!r}: write UNIT=FILE, each unit once")
        found[unit] = Path(file)
    return found


def demo(
    spec: Annotated[Path, typer.Argument(help="The spec to run.")] = Path("specs/qwen2.5-coder-0.5b-cpu.yaml"),
    folder: Annotated[
        Path, typer.Option(help="Where the scratch forge and clone go; emptied first, but for forges with merged work.")
    ] = Path(".demo"),
    allow_unsandboxed: Unsandboxed = False,
) -> None:
    """Run a spec in a scratch forge whose base lacks the engine, then ask the new engine for code over HTTP."""
    from metainfer.commands.demo import run_demo

    raise typer.Exit(run_demo(Workspace.find(), spec, folder, allow_unsandboxed=allow_unsandboxed))


def doctor(
    github: Annotated[
        bool, typer.Option("--github", help="Examine the repository's settings on GitHub instead of this machine.")
    ] = False,
    check: Annotated[
        list[str] | None, typer.Option(help="With --github: a check that has to be required too; repeatable.")
    ] = None,
    forge: ForgeOption = None,
) -> None:
    """Say what this machine lacks for generating, judging and serving engines; or what a repository on GitHub does."""
    if github:
        from metainfer.commands.doctor_github import examine_github

        raise typer.Exit(examine_github(forge, check or []))
    from metainfer.commands.doctor import examine

    complaints = 0
    for name, problem in examine():
        typer.echo(f"{'ok     ' if not problem else 'missing'} {name}{': ' + problem if problem else ''}")
        complaints += bool(problem)
    raise typer.Exit(ExitCode.ENVIRONMENT if complaints else ExitCode.OK)
