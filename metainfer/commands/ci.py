"""`metainfer ci`: the run as jobs of a workflow. Each job is one of these commands; the YAML around them stays thin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from metainfer.commands import ci_reports
from metainfer.commands.context import Workspace, cache_root
from metainfer.commands.run import ForgeOption
from metainfer.console import make_reporter
from metainfer.errors import ExitCode, MetainferError

if TYPE_CHECKING:
    from metainfer.ci.affected import Change
    from metainfer.ci.deployment import Deployment
    from metainfer.ci.repository import Checkout


class _Jobs(TyperGroup):
    """Errors of these commands may hold what a stranger wrote: they reach the log escaped, and as an annotation."""

    def invoke(self, ctx: Any) -> Any:
        from metainfer.ci.actions import Annotation, annotate, on_runner, say

        try:
            return super().invoke(ctx)
        except MetainferError as error:
            if on_runner():
                annotate([Annotation("error", str(error))])
            say(f"error: {error}", error=True)
            raise typer.Exit(error.exit_code) from error


app = typer.Typer(cls=_Jobs, no_args_is_help=True, help="The run as jobs of a workflow, split by privilege.")
app.command("spec-report")(ci_reports.spec_report)
app.command()(ci_reports.post)
app.command()(ci_reports.nightly)
app.command("release-plan")(ci_reports.release_plan)

Base = Annotated[str, typer.Option(help="The commit whose specs, knowledge and gates count; 40 hex digits.")]
SpecOption = Annotated[str, typer.Option("--spec", help="The spec's path from the repository's root.")]
BaseBranch = Annotated[str, typer.Option(help="The branch that the pull request is for.")]
Regenerate = Annotated[bool, typer.Option("--regenerate", help="Go on although a person stopped the bot.")]
BundleDir = Annotated[Path, typer.Argument(help="What `ci generate` wrote.")]


@app.command()
def plan(
    base: Annotated[str, typer.Option(help="The commit before; 40 zeros are the beginning.")],
    head: Annotated[str, typer.Option(help="The commit after.")],
    spec: Annotated[list[str] | None, typer.Option(help="Only this spec, whatever changed; repeatable.")] = None,
    specs: Annotated[str, typer.Option(help="The same for several, with spaces or commas between them.")] = "",
    every: Annotated[bool, typer.Option("--all", help="All specs, whatever changed.")] = False,
    behind: Annotated[
        bool, typer.Option("--behind", help="Also engines that are not what the head's inputs make.")
    ] = False,
    cpu_runner: Annotated[str, typer.Option(help="Labels of the CPU runner.")] = "ubuntu-24.04",
    only_specs: Annotated[
        bool, typer.Option("--only-specs", help="Refuse a change that touches anything but specs/.")
    ] = False,
) -> None:
    """Which engines a change affects, and why; as jobs for a matrix. The last line is JSON."""
    import json

    from metainfer.ci import plan_report
    from metainfer.ci.actions import add_summary, annotate, set_outputs
    from metainfer.ci.affected import Asked, affected_engines, require_only_specs
    from metainfer.ci.matrix import chunks, parse_labels

    checkout = _checkout()
    if only_specs:
        require_only_specs(checkout, base, head)
    change = affected_engines(
        checkout, base, head, cache_root(), Asked((*(spec or ()), *specs.replace(",", " ").split()), every, behind)
    )
    jobs = chunks(change, parse_labels(cpu_runner))
    annotate(plan_report.remarks(change))
    add_summary(plan_report.markdown(change))
    matrices = [json.dumps({"include": chunk}) for chunk in jobs]
    set_outputs({"chunks": json.dumps(matrices), "count": str(len(change.affected)), "head": change.head})
    typer.echo(json.dumps(plan_report.as_data(change, jobs)))
    raise typer.Exit(_plan_code(change))


@app.command()
def generate(
    spec: Annotated[str, typer.Argument(help="The spec's path from the repository's root.")],
    out: Annotated[Path, typer.Option(help="Where to write the bundle.")],
    base: Base,
    base_branch: BaseBranch = "main",
    propose: Annotated[list[Path] | None, typer.Option(help="Knowledge to propose beside it; repeatable.")] = None,
    regenerate: Regenerate = False,
    forge: ForgeOption = None,
) -> None:
    """Make a candidate and bundle it, unless its pull request is there already. Runs nothing that was generated."""
    from metainfer.ci.actions import add_summary, set_outputs
    from metainfer.ci.making import make_candidate
    from metainfer.forge.markdown import code, inline
    from metainfer.forge.setup import open_forge

    deployment = _deployment(base, spec)
    with make_reporter(as_json=False) as reporter:
        made = make_candidate(
            deployment,
            out,
            cache=cache_root(),
            progress=reporter,
            forge=open_forge(deployment.checkout.root, forge),
            base_branch=base_branch,
            proposals=propose or (),
            regenerate=regenerate,
        )
        reporter.result("", {"state": made.state, "reason": made.reason})
    set_outputs({"state": made.state, "engine": made.engine, "input-hash": made.input_hash})
    add_summary(f"### {code(made.engine)}: {made.state}\n\n{inline(made.reason)}\n")
    _say(f"{made.engine}: {made.state}. {made.reason}")


@app.command()
def validate(
    bundle: BundleDir,
    out: Annotated[Path, typer.Option(help="Where to write the report.")],
    base: Base,
    spec: SpecOption,
    bench: Annotated[bool, typer.Option(help="Measure the engine, beside a peer.")] = True,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats of the benchmark.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the gates' random inputs.")] = 0,
) -> None:
    """Judge a bundle's engine in the sandbox. Refused where a secret is in the environment. Exit code 1: it is red."""
    from metainfer.ci.actions import add_summary, commands_stopped, set_outputs
    from metainfer.ci.judging import Effort, judge_bundle
    from metainfer.ci.verdict import markdown

    workspace = Workspace.find()
    with commands_stopped(), make_reporter(as_json=False) as reporter:
        evidence = judge_bundle(
            bundle,
            out,
            _deployment(base, spec),
            cache=cache_root(),
            state=workspace.state,
            progress=reporter,
            effort=Effort(bench, repeats, seed),
        )
    add_summary(markdown(evidence))
    set_outputs({"green": str(evidence.green).lower()})
    raise typer.Exit(ExitCode.OK if evidence.green else ExitCode.RED)


@app.command()
def publish(
    bundle: BundleDir,
    report: Annotated[Path, typer.Argument(help="What `ci validate` wrote.")],
    base: Base,
    spec: SpecOption,
    base_branch: BaseBranch = "main",
    bill: Annotated[str, typer.Option(help="What its model cost, as `ci ask` said: TOKENS,USD.")] = "",
    regenerate: Regenerate = False,
    forge: ForgeOption = None,
) -> None:
    """Propose a judged engine. Believes neither folder, and runs nothing that was generated."""
    from metainfer.ci.publishing import publish_bundle
    from metainfer.forge.protocol import Status
    from metainfer.forge.setup import open_forge

    deployment = _deployment(base, spec)
    outcome = publish_bundle(
        bundle,
        report,
        deployment,
        open_forge(deployment.checkout.root, forge),
        cache=cache_root(),
        base_branch=base_branch,
        regenerate=regenerate,
        bill=bill,
    )
    _tell(outcome.status, outcome.number, outcome.reason)
    raise typer.Exit(ExitCode.CONFLICT if outcome.status is Status.BLOCKED else ExitCode.OK)


@app.command()
def stack(
    number: Annotated[int, typer.Argument(help="A pull request that changes specs.")], forge: ForgeOption = None
) -> None:
    """Say whether engines may be stacked on a pull request, on which commit. Refused unless a writer labelled it."""
    from metainfer.ci.actions import set_outputs
    from metainfer.ci.stacking import stack_on
    from metainfer.forge.setup import open_forge

    found = stack_on(open_forge(Workspace.find().root, forge), number)
    set_outputs({"base": found.base, "head": found.head, "branch": found.branch})
    _say(f"#{number}: engines for {found.head[:12]}, to be merged into {found.branch}")


@app.command("ask-generate")
def ask_generate(
    number: Annotated[int, typer.Argument(help="A pull request that changes specs.")], forge: ForgeOption = None
) -> None:
    """Start generate.yml of the default branch for a pull request; whether it may is decided there."""
    from metainfer.ci.stacking import ask_for_engines
    from metainfer.forge.setup import open_forge

    ask_for_engines(open_forge(Workspace.find().root, forge), number)
    _say(f"#{number}: generate.yml was asked")


@app.command()
def stopped(
    engine: Annotated[str, typer.Argument(help="The engine's name.")],
    input_hash: Annotated[str, typer.Option(help="As `ci generate` said.")],
    base_branch: BaseBranch = "main",
    forge: ForgeOption = None,
) -> None:
    """Say on an engine's pull request, once, that a person's commits stop the bot."""
    from metainfer.ci.publishing import say_stopped
    from metainfer.forge.markers import check_input_hash
    from metainfer.forge.setup import open_forge

    outcome = say_stopped(open_forge(Workspace.find().root, forge), engine, check_input_hash(input_hash), base_branch)
    _tell(outcome.status, outcome.number, outcome.reason)


def _tell(status: str, number: int | None, reason: str) -> None:
    from metainfer.ci.actions import Annotation, add_summary, annotate, set_outputs
    from metainfer.forge.markdown import inline

    set_outputs({"status": str(status), "number": str(number or "")})
    which = f"pull request #{number}: " if number else ""
    add_summary(f"{inline(which)}**{status}**: {inline(reason)}\n")
    _say(f"{which}{status}: {reason}")
    if status == "blocked":
        annotate([Annotation("warning", f"{which}{reason}")])


def _plan_code(change: Change) -> ExitCode:
    """A broken spec does not stop the others; alone it is an error."""
    return ExitCode.BAD_INPUT if change.broken and not change.affected else ExitCode.OK


def _checkout() -> Checkout:
    from metainfer.ci.repository import Checkout

    return Checkout(Workspace.find().root)


def _deployment(base: str, spec: str) -> Deployment:
    from metainfer.ci.deployment import deployment_at

    return deployment_at(_checkout(), base, spec, Workspace.find().state)


def _say(text: str) -> None:
    from metainfer.ci.actions import say

    say(text)
