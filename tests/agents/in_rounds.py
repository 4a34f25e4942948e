"""Units written in one process and in rounds, by the same scripted model, from the same inputs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metainfer.agents.admission import Terms
from metainfer.agents.answering import Answered, Line, answer_all
from metainfer.agents.correspondence import Correspondence, RunId
from metainfer.agents.pausing import PausedError
from metainfer.agents.recorded import Recorded
from metainfer.agents.requests import PendingRequest, read_requests, write_requests
from metainfer.agents.transcript import read_transcript
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.specializer import generate
from metainfer.pipeline.agents import Access, AgentAccess, Written, agent_settings, write_units
from metainfer.progress import Silent
from metainfer.sandbox import Sandbox
from metainfer.spec.models import Generation
from tests.agents.scripted_endpoint import Act, scripted

MOST_ROUNDS = 12


@dataclass(frozen=True)
class Desk:
    """One engine's inputs and settings, and a folder."""

    inputs: EngineInputs
    settings: Generation
    folder: Path
    state: Path
    """Of several tests, for the exemplars' kernels are built in it; replies in it are of one process's run."""
    answers_probes: bool = True
    """Whether the endpoint does by itself; else the script is asked those questions too."""

    @property
    def correspondence(self) -> Correspondence:
        return Correspondence(self.folder / "replies")

    @property
    def run(self) -> RunId:
        return RunId(engine=self.inputs.name, digest="0" * 64)

    @property
    def terms(self) -> Terms:
        return Terms(self.inputs.name, self.settings, {contract.id for contract in self.inputs.routing.contracts})

    def write(self, access: Access, name: str) -> Written:
        return write_units(
            replace(self.inputs, agent=agent_settings(self.settings)),
            self.settings,
            access,
            folder=self.folder / name,
            state=self.state,
            sandbox=Sandbox(),
            progress=Silent(),
        )

    def at_once(self, act: Act, **access: Any) -> Written:
        shutil.rmtree(self.state / "replies", ignore_errors=True)
        shutil.rmtree(self.state / "ledgers", ignore_errors=True)
        with scripted(act, answers_probes=self.answers_probes) as endpoint:
            return self.write(AgentAccess(endpoint.base_url, **access), "at-once")

    def advance(self, name: str, *, final: bool = False) -> Written | list[PendingRequest]:
        """What was written, or what is asked."""
        recorded = Recorded(self.correspondence, self.folder / "verdicts", final=final)
        try:
            return self.write(recorded, name)
        except PausedError:
            file = self.folder / "requests.jsonl"
            write_requests(file, self.run, recorded.pending)
            pending = read_requests(file, self.run)
            self.terms.require(pending)
            return pending

    def ask(self, pending: list[PendingRequest], base_url: str, **line: Any) -> Answered:
        self.correspondence.begin(self.run)
        return answer_all(pending, self.correspondence, self.settings, Line(base_url, **line))

    def in_rounds(self, act: Act, *, most: int = MOST_ROUNDS, **line: Any) -> tuple[Written, int]:
        """What was written, and how many times the model was asked."""
        with scripted(act, answers_probes=self.answers_probes) as endpoint:
            for asked in range(most + 1):
                found = self.advance(f"round-{asked}", final=asked == most)
                if isinstance(found, Written):
                    return found, asked
                self.ask(found, endpoint.base_url, **line)
        raise AssertionError(f"not done after {most} rounds")

    def require_same(self, at_once: Written, in_rounds: Written, asked: int) -> None:
        """The same engine, manifest and outcomes, and the same replies behind them."""
        inputs = replace(self.inputs, agent=agent_settings(self.settings))
        one, other = (generate(inputs, made.units, agent=made.record).files for made in (at_once, in_rounds))
        assert one == other
        assert at_once.outcomes == in_rounds.outcomes
        assert self.talk("at-once") == self.talk(f"round-{asked}")

    def talk(self, name: str) -> list[tuple[str, ...]]:
        turns = read_transcript(self.folder / name / "transcript.jsonl")
        said = {(t.request.digest, t.purpose.model_dump_json(), t.reply.model_dump_json()) for t in turns if t.reply}
        return sorted(said)
