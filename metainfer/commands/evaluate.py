"""`metainfer eval`: which model can write which units of this knowledge base."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metainfer.commands.context import Workspace, cache_root
from metainfer.commands.run import SpecPath, agent_access
from metainfer.console import make_reporter, printable

if TYPE_CHECKING:
    from metainfer.generate.inputs import EngineInputs
    from metainfer.spec.models import Generation


def evaluate(
    spec: SpecPath,
    model: Annotated[str, typer.Option(help="The model, as its endpoint names it.")],
    base_url: Annotated[str, typer.Option(envvar="METAINFER_BASE_URL", help="An OpenAI-compatible endpoint.")],
    k: Annotated[int, typer.Option("-k", min=1, max=100, help="Independent samples of each contract.")] = 3,
    rounds: Annotated[int, typer.Option(min=0, max=20, help="Repairs of a sample from what was found in it.")] = 0,
    reference: Annotated[str, typer.Option(help="What the model may see: none, exemplars, source:PATH.")] = "none",
    contract: Annotated[list[str] | None, typer.Option(help="Only this contract; repeatable.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Length of one answer.")] = 2048,
    temperature: Annotated[float, typer.Option(min=0, max=2)] = 0.7,
    max_wall: Annotated[float | None, typer.Option(min=0, help="Seconds after which no further call begins.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of all calls, prompts included.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Calls at once.")] = 2,
    price: Annotated[str | None, typer.Option(help="US dollars per million tokens, INPUT,OUTPUT.")] = None,
    ckb: Annotated[Path, typer.Option(help="The knowledge base to use.")] = Path("ckb"),
    out: Annotated[Path | None, typer.Option(help="Write the report there as JSON.")] = None,
) -> None:
    """Ask a model for the units of a spec's engine, judge every answer, and print pass@1 and pass@k per contract."""
    from metainfer.agents.budget import Limits
    from metainfer.files import pretty_json, write_atomic
    from metainfer.pipeline.eval_report import render
    from metainfer.pipeline.evaluate import EvalPlan
    from metainfer.pipeline.evaluate import evaluate as run_evaluation
    from metainfer.pipeline.prepare import changed_generation, prepare
    from metainfer.sandbox.sandbox import Sandbox
    from metainfer.spec.models import Generation

    workspace = Workspace.find()
    settings = changed_generation(
        Generation(),
        {
            "backend": "agents",
            "model": model,
            "reference": reference,
            "rounds": rounds,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "contracts": contract or [],
        },
    )
    with make_reporter(as_json=False) as reporter:
        asked = {"backend": "agents", "model": model, "reference": reference}
        prepared = prepare(spec, ckb, workspace.root, cache_root(), reporter, generation=asked)
        plan = EvalPlan(
            settings,
            k,
            Limits(wall_s=max_wall, tokens=budget_tokens),
            workspace.state / "eval" / _folder_name(prepared.inputs, settings),
        )
        report = run_evaluation(
            prepared.inputs,
            plan,
            agent_access(base_url, price, concurrency),
            sandbox=Sandbox(),
            progress=reporter,
        )
    typer.echo(printable(render(report)))
    if out:
        write_atomic(out, pretty_json(report.model_dump(mode="json")))


def _folder_name(inputs: EngineInputs, settings: Generation) -> str:
    """Of what one evaluation leaves behind; another one, whose calls are no part of its figures, has another."""
    from metainfer.files import canonical_json, sha256_bytes
    from metainfer.pipeline.agents import agent_settings

    asked = agent_settings(settings, inputs.sources) | {"inputs": inputs.input_hash}
    told = f"{settings.model}-{settings.reference}-{inputs.name}"
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', told)[:100]}-{sha256_bytes(canonical_json(asked))[:12]}"


def scores(
    reports: Annotated[list[Path], typer.Argument(help="Reports that `metainfer eval --out` wrote.")],
    plot: Annotated[Path | None, typer.Option(help="Draw pass@1 there too: a .svg, .png or .pdf.")] = None,
) -> None:
    """Put several evaluations side by side, as a Markdown table and as a plot: which model may I use?"""
    from metainfer.pipeline.eval_report import plot as draw
    from metainfer.pipeline.eval_report import read_report, side_by_side

    read = [read_report(file) for file in reports]
    typer.echo(side_by_side(read))
    if plot:
        draw(read, plot)
