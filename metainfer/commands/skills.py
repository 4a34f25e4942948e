"""`metainfer skills`: the contracts of a spec as skills for anybody's coding agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metainfer.commands.context import Workspace, cache_root
from metainfer.commands.run import SpecPath
from metainfer.console import make_reporter
from metainfer.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Contracts as skills for coding agents.")


@app.callback()
def skills() -> None:
    """Contracts as skills for coding agents."""


@app.command()
def export(
    spec: SpecPath,
    folder: Annotated[Path, typer.Argument(help="Gets a folder per skill; skills of an earlier export are replaced.")],
    reference: Annotated[str, typer.Option(help="What the skills show: none, exemplars, source:PATH.")] = "none",
    ckb: Annotated[Path, typer.Option(help="The knowledge base to use.")] = Path("ckb"),
) -> None:
    """Write a skill for each contract of a spec's engine, and one for reviewing, in the public format."""
    from metainfer.files import write_atomic
    from metainfer.pipeline.prepare import prepare
    from metainfer.pipeline.skills import export_skills
    from metainfer.spec.models import Generation

    settings = Generation.model_validate({"reference": reference})
    root = Workspace.find().root
    with make_reporter(as_json=False) as reporter:
        asked = {"backend": "agents", "model": "any", "reference": reference}
        prepared = prepare(spec, ckb, root, cache_root(), reporter, generation=asked)
    made = export_skills(prepared.inputs, settings)
    for skill in made:
        target = folder / skill.name
        if target.exists() and not (target / "SKILL.md").is_file():
            raise InputError(f"{target} is there already and no skill; name another folder")
        for path, text in skill.files.items():
            write_atomic(target / path, text.encode())
            if path.startswith("scripts/"):
                (target / path).chmod(0o755)
    size = max(len(skill.files["SKILL.md"].encode()) for skill in made)
    typer.echo(f"{folder}: {len(made)} skills, the largest {size:,} bytes")
