"""The jobs of `metainfer ci` that look and tell: about specs, the state of a branch, and releases that are due."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from metainfer.commands.context import Workspace, cache_root
from metainfer.commands.run import ForgeOption
from metainfer.console import make_reporter
from metainfer.errors import ExitCode


def spec_report(
    base: Annotated[str, typer.Option(help="The commit that the change is for: its knowledge counts.")],
    head: Annotated[str, typer.Option(help="The change.")] = "HEAD",
    out: Annotated[Path, typer.Option(help="Where to write the Markdown.")] = Path("spec-report.md"),
    fetch: Annotated[bool, typer.Option("--fetch", help="Download models whose facts are not known yet.")] = False,
) -> None:
    """Say of every changed spec whether it is valid, covered and feasible, and what it may cost. Exit code 1 if not."""
    from metainfer.ci import spec_report as reports
    from metainfer.ci.actions import add_summary, annotate, say, set_outputs
    from metainfer.ci.affected import affected_engines
    from metainfer.ci.repository import Checkout
    from metainfer.ckb.store import KnowledgeBase
    from metainfer.files import write_atomic
    from metainfer.pipeline.knowledge import export_knowledge

    workspace = Workspace.find()
    checkout = Checkout(workspace.root)
    start = checkout.merge_base(checkout.commit(base), checkout.commit(head))
    change = affected_engines(checkout, start, head, cache_root())
    there = checkout.tree(change.head, "specs")
    paths = [path for path in checkout.changed(start, change.head, ["specs"]) if path in there]
    with make_reporter(as_json=False, aside=True) as reporter:
        knowledge = KnowledgeBase.load(export_knowledge(checkout, checkout.commit(base), workspace.state))
        examiner = reports.Examiner(workspace.root, knowledge, cache_root(), reporter, fetch)
        specs = [path for path in paths if path.endswith((".yaml", ".yml")) and path.count("/") == 1]
        report = reports.SpecReport([examiner.examine(path) for path in specs], change)
    text = reports.markdown(report)
    write_atomic(out, text.encode())
    annotate(report.annotations)
    add_summary(text)
    set_outputs({"good": str(report.good).lower(), "report": str(out)})
    say(text)
    raise typer.Exit(ExitCode.OK if report.good else ExitCode.RED)


def post(
    number: Annotated[int, typer.Argument(help="A pull request or issue.")],
    file: Annotated[Path, typer.Argument(help="Markdown, as another job left it.")],
    key: Annotated[str, typer.Option(help="Which comment of ours it is: edited in place.")] = "spec-report",
    forge: ForgeOption = None,
) -> None:
    """Keep one comment on a pull request current. The text comes from a job that anybody's change ran in."""
    from metainfer.ci.actions import say
    from metainfer.ci.posting import post_comment
    from metainfer.forge.setup import open_forge

    say(post_comment(open_forge(Workspace.find().root, forge), number, file, key))


def nightly(
    audit: Annotated[bool, typer.Option(help="Run every check of the knowledge base and its mutants; minutes.")] = True,
    out: Annotated[Path, typer.Option(help="Where to write the Markdown.")] = Path("nightly.md"),
    cpu_runner: Annotated[str, typer.Option(help="Labels of the CPU runner.")] = "ubuntu-24.04",
) -> None:
    """What time does: engines that are not what their inputs make, knowledge that fails. Exit code 1 if so."""
    from metainfer.ci import nightly as nights
    from metainfer.ci.actions import add_summary, say, set_outputs
    from metainfer.ci.matrix import engine_jobs, parse_labels
    from metainfer.ci.repository import Checkout
    from metainfer.commands.audit import run_audit
    from metainfer.files import write_atomic

    root = Workspace.find().root
    problems: list[str] | None = None
    if audit:
        count = run_audit(root / "ckb")
        problems = [f"{count} problem(s); the log of this job has them"] if count else []
    checkout = Checkout(root)
    report = nights.look_around(checkout, "HEAD", cache_root(), problems)
    text = nights.markdown(report)
    write_atomic(out, text.encode())
    add_summary(text)
    behind = [one.engine for one in report.drifts if one.behind]
    jobs = engine_jobs(checkout, report.commit, parse_labels(cpu_runner))
    matrix = json.dumps({"include": jobs})
    good = str(report.good).lower()
    set_outputs({"good": good, "behind": json.dumps(behind), "matrix": matrix, "engines": str(len(jobs))})
    say(text)
    raise typer.Exit(ExitCode.OK if report.good else ExitCode.RED)


def release_plan(
    base: Annotated[str, typer.Option(help="The commit before; 40 zeros are the beginning.")],
    head: Annotated[str, typer.Option(help="The commit after.")],
    engine: Annotated[list[str] | None, typer.Option(help="Only this engine, whatever changed; repeatable.")] = None,
    forge: ForgeOption = None,
) -> None:
    """Which releases a push makes due, as a matrix. The last line is JSON."""
    from dataclasses import asdict

    from metainfer.ci.actions import Annotation, add_summary, annotate, set_outputs
    from metainfer.ci.matrix import MAX_JOBS
    from metainfer.ci.releasing import plan_releases
    from metainfer.ci.repository import Checkout
    from metainfer.forge.markdown import code
    from metainfer.forge.setup import open_forge

    root = Workspace.find().root
    plan = plan_releases(Checkout(root), open_forge(root, forge), base, head, engine or ())
    jobs = [asdict(one) for one in plan.due[:MAX_JOBS]]  # the next push, or a person, releases what is left
    annotate([Annotation("warning", f"{name}: {why}") for name, why in plan.refused])
    add_summary(
        "".join(f"- {code(one.tag)} at {code(one.commit[:12])}\n" for one in plan.due) or "No release is due.\n"
    )
    set_outputs({"count": str(len(jobs)), "matrix": json.dumps({"include": jobs})})
    typer.echo(json.dumps(asdict(plan)))
