"""The command line: one place where commands get their names and errors become messages and exit codes."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from metainfer import __version__
from metainfer.commands import (
    ci,
    ci_agents,
    ci_review,
    ckb,
    engine,
    evaluate,
    forge,
    init,
    model,
    pr,
    release,
    run,
    runs,
    skills,
    spec,
)
from metainfer.console import printable
from metainfer.errors import ExitCode, MetainferError


class _Interrupted(Exception):
    """Ctrl-C, on its way past Typer, which would end the process without a word."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted from error


app = typer.Typer(
    cls=_Commands,
    name="metainfer",
    help="Generates compact, single-path LLM inference engines from a spec and a contract knowledge base.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("init")(init.init)
app.command("run")(run.run)
app.command("submit")(run.submit)
app.command("demo")(run.demo)
app.command("generate")(engine.generate)
app.command("verify")(engine.verify)
app.command("gate")(engine.gate)
app.command("bench")(engine.bench)
app.command("serve")(engine.serve)
app.command("explain")(engine.explain)
app.command("eval")(evaluate.evaluate)
app.command()(evaluate.scores)
app.command("replay")(runs.replay)
app.command("release")(release.release)
app.command("bundle")(release.bundle)
app.command("doctor")(run.doctor)
app.add_typer(pr.app, name="pr")
app.add_typer(spec.app, name="spec")
app.add_typer(model.app, name="model")
app.add_typer(ckb.app, name="ckb")
ci.app.command()(ci_agents.advance)
ci.app.command()(ci_agents.ask)
app.add_typer(ci.app, name="ci")
ci_review.register(ci.app)
app.add_typer(forge.app, name="forge")
app.add_typer(runs.app, name="runs")
app.add_typer(skills.app, name="skills")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"metainfer {__version__}")
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
]


@app.callback()
def root(version: _Version = False) -> None:
    """Options that come before any command."""


def main() -> None:
    """Entry point of the `metainfer` script."""
    try:
        app()
    except MetainferError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:  # a full disk, a read-only folder, a path that cannot be made
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {printable(f'{where}{error.strerror or error}')}", file=sys.stderr)
        sys.exit(ExitCode.ENVIRONMENT)
    except (_Interrupted, KeyboardInterrupt):
        print("interrupted; nothing half-done was kept, run the same command again", file=sys.stderr)
        sys.exit(ExitCode.INTERRUPTED)
