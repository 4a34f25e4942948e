"""A repository with the knowledge base and the specs, and a local forge beside it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from metainfer.forge.setup import create_local_forge, open_forge
from metainfer.pipeline.agents import AgentAccess
from metainfer.pipeline.run import RunRequest, RunResult, run
from metainfer.progress import Silent
from tests.agents.scripted_endpoint import Act, scripted

ROOT = Path(__file__).parents[2]


def make_repository(folder: Path) -> Path:
    """Fill `folder`, which is not there yet, and return it."""
    folder.mkdir(parents=True)
    for name in ("ckb", "specs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "Reviewer"],
        ["config", "user.email", "reviewer@example.org"],
        ["add", "."],
        ["commit", "--quiet", "-m", "Start"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    create_local_forge(folder, folder.parent / "forge.git", "reviewer@example.org")
    return folder


def run_with(work: Path, act: Act, generation: dict[str, Any], **options: Any) -> RunResult:
    """A run of tiny-qwen3 with a model that does what `act` says."""
    with scripted(act) as endpoint:
        request = RunRequest(
            spec_path=work / "specs" / "tiny-qwen3.yaml",
            repo_root=work,
            state=work / ".metainfer",
            cache=work.parent / "cache",
            bench=False,
            agents=AgentAccess(endpoint.base_url),
            generation=generation,
            **options,
        )
        return run(request, open_forge(work), Silent())
