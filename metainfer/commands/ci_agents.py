"""`metainfer ci advance` and `ci ask`: a run with a model in rounds, so that no job holds a key and runs code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metainfer.commands.context import Workspace, cache_root
from metainfer.commands.run import ForgeOption
from metainfer.console import make_reporter
from metainfer.errors import ExitCode

if TYPE_CHECKING:
    from metainfer.ci.deployment import Deployment

Spec = Annotated[str, typer.Argument(help="The spec's path from the repository's root.")]
Base = Annotated[str, typer.Option(help="The commit whose spec and knowledge count; 40 hex digits.")]


def advance(
    spec: Spec,
    replies: Annotated[Path, typer.Option(help="The folder of the run that `ci ask` fills; it may not be there yet.")],
    out: Annotated[Path, typer.Option(help="Of this round; with what the round before left there, nothing is twice.")],
    base: Base,
    final: Annotated[
        bool, typer.Option("--final", help="No further round: what has no reply falls back as the spec says.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the gates' random inputs.")] = 0,
) -> None:
    """Go as far as the replies reach: to questions, in OUT/requests.jsonl, or to a judged engine, in OUT/bundle.

    Asks no model, and is refused where a secret is in the environment. Exit code 1: the engine is red.
    """
    from metainfer.ci.actions import add_summary, commands_stopped, say, set_outputs
    from metainfer.ci.advancing import advance_round
    from metainfer.forge.markdown import code, inline

    deployment = _deployment(base, spec)
    name = deployment.spec.name
    with commands_stopped(), make_reporter(as_json=False) as reporter:
        advanced = advance_round(
            deployment, replies, out, cache=cache_root(), progress=reporter, final=final, seed=seed
        )
    outputs = {"state": advanced.state, "pending": str(advanced.pending)}
    set_outputs(outputs | {"engine": name, "input-hash": advanced.input_hash})
    add_summary(f"### {code(name)}: {advanced.state}\n\n{inline(advanced.message)}\n")
    where = f"\nrun folder: {advanced.run_folder}" if advanced.run_folder else ""
    say(f"{name}: {advanced.state}. {advanced.message}{where}")
    raise typer.Exit(ExitCode.RED if advanced.state == "red" else ExitCode.OK)


def ask(
    spec: Spec,
    requests: Annotated[Path, typer.Option(help="What `ci advance` wrote; nothing in it is believed.")],
    replies: Annotated[Path, typer.Option(help="The folder of the run; made if it is not there.")],
    base: Base,
    base_url: Annotated[str, typer.Option(envvar="METAINFER_BASE_URL", help="An OpenAI-compatible endpoint, to /v1.")],
    price: Annotated[
        str | None,
        typer.Option(help="US dollars per million tokens, INPUT,OUTPUT; default: as listed; a local endpoint is free."),
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(min=1, help="Calls in all rounds, repeats too; default: more than the spec needs."),
    ] = None,
    most_usd: Annotated[
        float | None,
        typer.Option(
            min=0, envvar="METAINFER_MOST_USD", help="Refuse a spec whose budget_usd is more; default: no such bound."
        ),
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(help="The ledger that the round before left, as its `ledger` output says.")
    ] = None,
    forge: ForgeOption = None,
) -> None:
    """Get replies for a round's questions. Holds the model's key (METAINFER_API_KEY), and runs no generated code.

    The model, its settings and its budget are the spec's; a question that says otherwise is refused, and then none is
    asked. With --forge, a label metainfer/stop on the engine's pull request stops all calls.
    """
    from metainfer.agents.answering import Line
    from metainfer.agents.client import api_key
    from metainfer.agents.prices import parse_price
    from metainfer.ci.actions import add_summary, say, set_outputs
    from metainfer.ci.asking import ask_round
    from metainfer.forge.markdown import code

    deployment = _deployment(base, spec)
    halted = None
    if forge is not None:
        from metainfer.forge.setup import open_forge
        from metainfer.pipeline.stopping import stop_label_watch

        halted = stop_label_watch(open_forge(deployment.checkout.root, forge), deployment.spec.name)
    line = Line(base_url, api_key(), parse_price(price) if price else None, most_calls=calls, halted=halted)
    answered = ask_round(deployment, requests, replies, line, ledger_mark=ledger, most_usd=most_usd)
    set_outputs({"ledger": answered.mark, "replies": str(answered.replies), "bill": answered.bill})
    told = answered.in_words()
    add_summary(f"### {code(deployment.spec.name)}: asked\n\n{told}\n")
    say(told)


def _deployment(base: str, spec: str) -> Deployment:
    from metainfer.ci.deployment import deployment_at
    from metainfer.ci.repository import Checkout

    workspace = Workspace.find()
    return deployment_at(Checkout(workspace.root), base, spec, workspace.state)
