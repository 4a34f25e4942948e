"""Rebuilds a run's engine from its transcript: no model, no endpoint, no judge, and the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from metainfer.agents.answer import read_answer
from metainfer.agents.implementer import Outcome
from metainfer.agents.messages import Reply
from metainfer.agents.optimiser import OPTIMISER
from metainfer.agents.transcript import Turn, read_transcript
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError
from metainfer.generate.manifest import AgentRecord, read_manifest
from metainfer.generate.regenerate import differences, regenerate
from metainfer.generate.written import WrittenUnits
from metainfer.pipeline.agents import OUTCOMES_NAME, TRANSCRIPT_NAME, with_newline
from metainfer.pipeline.optimise import REPORT_NAME
from metainfer.pipeline.optimise_report import OptimiseReport

T = TypeVar("T")
_OUTCOMES = TypeAdapter(list[Outcome])
_REPORT = TypeAdapter(OptimiseReport)


def replay(run_folder: Path, engine: str, ckb_root: Path) -> list[str]:
    """A line for every file of the run's engine that its transcript does not make again; empty if it makes them all.

    Raises InputError if no model took part in the run, or its records do not fit together.
    """
    engine_dir = run_folder / engine
    agent = read_manifest(engine_dir).agent
    if agent is None:
        raise InputError(f"{run_folder.name}: no model took part in it; `metainfer verify` makes its engine again")
    return differences(engine_dir, regenerate(engine_dir, ckb_root, list(_written(run_folder, ckb_root, agent))))


def _written(run_folder: Path, ckb_root: Path, agent: AgentRecord) -> Iterator[WrittenUnits]:
    """For each contract that stayed with an answer that held, the code in the answer that it was."""
    transcript = run_folder / TRANSCRIPT_NAME
    turns = list(read_transcript(transcript)) if transcript.exists() else []  # nobody was asked
    contracts = KnowledgeBase.load(ckb_root).contracts
    for answer in _kept(run_folder, agent):
        if answer.contract not in contracts:
            raise InputError(f"{run_folder}: there is no contract {answer.contract!r}")
        code = read_answer(_reply(transcript, turns, answer), contracts[answer.contract].units).code
        yield WrittenUnits(answer.contract, with_newline(code), "agents")


@dataclass(frozen=True)
class _Kept:
    """Which answer became the units of a contract."""

    contract: str
    role: str
    round: int
    sample: int


def _kept(run_folder: Path, agent: AgentRecord) -> Iterator[_Kept]:
    """Those of the optimiser, by what was measured; of the others the one that held, unless they fell back."""
    report = run_folder / REPORT_NAME
    for tried in _read(report, _REPORT).kept if agent.optimised else ():
        assert tried.kept is not None
        yield _Kept(tried.contract, OPTIMISER, tried.kept.round, tried.kept.sample)
    gone = {*agent.fell_back, *agent.optimised}
    written = agent.settings.get("backend") == "agents"
    for outcome in _read(run_folder / OUTCOMES_NAME, _OUTCOMES) if written else ():
        held = outcome.held
        if held is not None and outcome.contract not in gone:
            yield _Kept(outcome.contract, "implementer", held.round, held.sample)


def _reply(transcript: Path, turns: list[Turn], kept: _Kept) -> Reply:
    for turn in turns:
        purpose = turn.purpose
        same = (purpose.role, purpose.subject, purpose.round) == (kept.role, kept.contract, kept.round)
        if same and turn.request.sample == kept.sample and turn.reply is not None:
            return turn.reply
    raise InputError(
        f"{transcript}: holds no answer of the {kept.role}, round {kept.round}, sample {kept.sample}, "
        f"for {kept.contract}"
    )


def _read(file: Path, kind: TypeAdapter[T]) -> T:
    try:
        return kind.validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(f"{file}: does not say what became of the contracts: {error}") from error
