"""Rebuilds a run's engine from its transcript: no model, no endpoint, no judge, and the same bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from metainfer.agents.answer import read_answer
from metainfer.agents.implementer import Attempt, Outcome
from metainfer.agents.messages import Reply
from metainfer.agents.transcript import Turn, read_transcript
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError
from metainfer.generate.manifest import read_manifest
from metainfer.generate.regenerate import differences, regenerate
from metainfer.generate.written import WrittenUnits
from metainfer.pipeline.agents import OUTCOMES_NAME, TRANSCRIPT_NAME, with_newline

_OUTCOMES = TypeAdapter(list[Outcome])


def replay(run_folder: Path, engine: str, ckb_root: Path) -> list[str]:
    """A line for every file of the run's engine that its transcript does not make again; empty if it makes them all.

    Raises InputError if no model took part in the run, or its records do not fit together.
    """
    engine_dir = run_folder / engine
    agent = read_manifest(engine_dir).agent
    if agent is None:
        raise InputError(f"{run_folder.name}: no model took part in it; `metainfer verify` makes its engine again")
    return differences(
        engine_dir, regenerate(engine_dir, ckb_root, list(_written(run_folder, ckb_root, agent.fell_back)))
    )


def _written(run_folder: Path, ckb_root: Path, fell_back: Collection[str]) -> Iterator[WrittenUnits]:
    """For each contract that stayed with an attempt that held, the code in the answer that it was."""
    turns = list(read_transcript(run_folder / TRANSCRIPT_NAME))
    contracts = KnowledgeBase.load(ckb_root).contracts
    for outcome in _outcomes(run_folder / OUTCOMES_NAME):
        held = outcome.held
        if outcome.contract not in contracts:
            raise InputError(f"{run_folder / OUTCOMES_NAME}: there is no contract {outcome.contract!r}")
        if held is not None and outcome.contract not in fell_back:
            answer = read_answer(_reply(turns, outcome.contract, held), contracts[outcome.contract].units)
            yield WrittenUnits(outcome.contract, with_newline(answer.code), "agents")


def _reply(turns: list[Turn], contract: str, attempt: Attempt) -> Reply:
    for turn in turns:
        purpose = turn.purpose
        same = (purpose.role, purpose.subject, purpose.round) == ("implementer", contract, attempt.round)
        if same and turn.request.sample == attempt.sample and turn.reply is not None:
            return turn.reply
    raise InputError(f"the transcript holds no answer of round {attempt.round}, sample {attempt.sample} for {contract}")


def _outcomes(file: Path) -> list[Outcome]:
    try:
        return _OUTCOMES.validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise InputError(f"{file}: does not say what became of the contracts: {error}") from error
