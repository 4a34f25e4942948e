"""A run with a model, once as one process and once in rounds, with the same model behind both."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from metainfer.agents.answering import Answered, Line
from metainfer.agents.transcript import read_transcript
from metainfer.ci.advancing import advance_round
from metainfer.ci.asking import ask_round
from metainfer.ci.deployment import Deployment, deployment_at
from metainfer.ci.repository import Checkout
from metainfer.forge.setup import create_local_forge, open_forge
from metainfer.pipeline.advance import Advanced
from metainfer.pipeline.agents import AgentAccess
from metainfer.pipeline.run import RunRequest, RunResult, run
from metainfer.progress import Silent
from tests.agents.scripted_endpoint import Act, ScriptedEndpoint, scripted
from tests.ci.repositories import OWNER, SPEC, commit, make_repository

MOST_ROUNDS = 14


@dataclass
class Split:
    """A repository whose spec lets a model write, and the folders of its rounds."""

    folder: Path
    generation: dict[str, Any]
    work: Path = field(init=False)

    def __post_init__(self) -> None:
        self.work = make_repository(self.folder / "work", ("tiny-qwen3",))
        self.set_generation(self.generation)
        create_local_forge(self.work, self.folder / "forge.git", OWNER)

    def set_generation(self, generation: dict[str, Any]) -> None:
        """Commit a spec with these settings."""
        spec = yaml.safe_load((self.work / SPEC).read_text())
        spec["generation"] = {"backend": "agents", "model": "scripted", **generation}
        (self.work / SPEC).write_text(yaml.safe_dump(spec))
        self.base = commit(self.work, "Let a model write")

    @property
    def replies(self) -> Path:
        return self.folder / "replies"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def requests(self) -> Path:
        return self.out / "requests.jsonl"

    @property
    def deployment(self) -> Deployment:
        return deployment_at(Checkout(self.work), self.base, SPEC, self.work / ".metainfer")

    def advance(self, *, final: bool = False) -> Advanced:
        return advance_round(
            self.deployment,
            self.replies,
            self.out,
            cache=self.folder / "cache",
            progress=Silent(),
            final=final,
            environment={},
        )

    def ask(self, base_url: str, mark: str | None = None, **line: Any) -> Answered:
        return ask_round(self.deployment, self.requests, self.replies, Line(base_url, **line), ledger_mark=mark)

    def loop(self, act: Act, *, moved: Callable[[Path], None] | None = None) -> tuple[Advanced, int]:
        """Advance and ask until it is done; how many times was asked. The folders travel between machines each time."""
        mark = None
        with scripted(act) as endpoint:
            for asked in range(MOST_ROUNDS):
                advanced = self.advance()
                if advanced.state != "pending":
                    return advanced, asked
                self._travel(self.out)
                mark = self.ask(endpoint.base_url, mark).mark
                self._travel(self.replies)
        raise AssertionError(f"not done after {MOST_ROUNDS} rounds")

    def run_at_once(self, act: Act) -> tuple[RunResult, ScriptedEndpoint]:
        """The same in one process, whose forge holds the same base."""
        with scripted(act) as endpoint:
            request = RunRequest(
                spec_path=self.work / SPEC,
                repo_root=self.work,
                state=self.folder / "state",
                cache=self.folder / "cache",
                bench=False,
                agents=AgentAccess(endpoint.base_url),
            )
            return run(request, open_forge(self.work), Silent()), endpoint

    def _travel(self, folder: Path) -> None:
        """Only files travel: what a process held, or where they lay, is gone."""
        away = self.folder / "artifact"
        shutil.copytree(folder, away, ignore=shutil.ignore_patterns("*.lock"))
        shutil.rmtree(folder)
        away.rename(folder)


def engine_bytes(folder: Path) -> dict[str, bytes]:
    """Every file of an engine but its evidence, which has times in it."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files.pop("evidence.json", None)
    return files


def talk(transcript: Path) -> list[tuple[Any, ...]]:
    """What was asked and answered, whenever and however often it was."""
    turns = {(t.request.digest, t.purpose.model_dump_json(), t.reply.model_dump_json())
             for t in read_transcript(transcript) if t.reply is not None}  # fmt: skip
    return sorted(turns)
