"""`metainfer eval`: which model can write which units of this knowledge base."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metainfer.commands.context import Workspace, cache_root
from metainfer.commands.run import SpecPath, agent_access
from metainfer.console import make_reporter


def evaluate(
    spec: SpecPath,
    model: Annotated[str, typer.Option(help="The model, as its endpoint names it.")],
    base_url: Annotated[str, typer.Option(envvar="METAINFER_BASE_URL", help="An OpenAI-compatible endpoint.")],
    k: Annotated[int, typer.Option("-k", min=1, max=100, help="Independent samples of each contract.")] = 3,
    rounds: Annotated[int, typer.Option(min=0, max=20, help="Repairs of a sample from what was found in it.")] = 0,
    reference: Annotated[str, typer.Option(help="What the model may see: none or exemplars.")] = "none",
    contract: Annotated[list[str] | None, typer.Option(help="Only this contract; repeatable.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Length of one answer.")] = 2048,
    temperature: Annotated[float, typer.Option(min=0, max=2)] = 0.7,
    max_wall: Annotated[float | None, typer.Option(help="Seconds after which no further call begins.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(help="Tokens of all calls, prompts included.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Calls at once.")] = 2,
    price: Annotated[str | None, typer.Option(help="US dollars per million tokens, INPUT,OUTPUT.")] = None,
    ckb: Annotated[Path, typer.Option(help="The knowledge base to use.")] = Path("ckb"),
    out: Annotated[Path | None, typer.Option(help="Write the report there as JSON.")] = None,
) -> None:
    """Ask a model for the units of a spec's engine, judge every answer, and print pass@1 and pass@k per contract."""
    from metainfer.agents.budget import Limits
    from metainfer.files import pretty_json, write_atomic
    from metainfer.pipeline.evaluate import EvalPlan, render
    from metainfer.pipeline.evaluate import evaluate as run_evaluation
    from metainfer.pipeline.prepare import prepare
    from metainfer.sandbox.sandbox import Sandbox
    from metainfer.spec.models import Generation

    workspace = Workspace.find()
    settings = Generation.model_validate(
        {
            "backend": "agents",
            "model": model,
            "reference": reference,
            "rounds": rounds,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "contracts": contract or [],
        }
    )
    with make_reporter(as_json=False) as reporter:
        asked = {"backend": "agents", "model": model}
        prepared = prepare(spec, ckb, workspace.root, cache_root(), reporter, generation=asked)
        plan = EvalPlan(
            settings,
            k,
            Limits(wall_s=max_wall, tokens=budget_tokens),
            workspace.state / "eval" / f"{model.replace('/', '_')}-{reference}-{prepared.spec.name}",
        )
        report = run_evaluation(
            prepared.inputs,
            plan,
            agent_access(base_url, price, concurrency),
            sandbox=Sandbox(),
            progress=reporter,
        )
    typer.echo(render(report))
    if out:
        write_atomic(out, pretty_json(report.model_dump(mode="json")))
