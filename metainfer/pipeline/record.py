"""What a run did, on disk: `record.json` in the run's folder, rewritten whole after every step."""

from __future__ import annotations

import fcntl
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from metainfer.errors import InputError
from metainfer.files import pretty_json, write_atomic

StepState = Literal["running", "done", "failed"]
RunState = Literal["running", "made", "published", "unchanged", "red", "failed", "lost"]
_ALIVE = "alive"
"""A file that the run's process keeps locked; the kernel unlocks it however the process ends."""


class StepRecord(BaseModel):
    """One step of a run."""

    model_config = ConfigDict(extra="forbid")

    name: str
    state: StepState
    seconds: float = 0.0
    message: str = ""


class RunRecord(BaseModel):
    """One run. Its folder also holds the candidate engine and the reports."""

    model_config = ConfigDict(extra="forbid")

    id: str
    engine: str
    spec: str
    input_hash: str
    base: str
    started: str
    state: RunState = "running"
    steps: list[StepRecord] = []
    pull_request: int | None = None
    message: str = ""


class RunLog:
    """A run in progress, bound to its folder."""

    def __init__(self, folder: Path, record: RunRecord) -> None:
        self.folder = folder
        self.record = record
        self._alive = (folder / _ALIVE).open("w")
        fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._save()

    @classmethod
    def begin(cls, state: Path, *, engine: str, spec: str, input_hash: str, base: str) -> RunLog:
        """Start a run in a folder of its own, named by time so that folders sort by age."""
        now = datetime.now(UTC)
        run_id = f"{now:%Y%m%dT%H%M%SZ}-{engine}-{secrets.token_hex(3)}"
        folder = state / "runs" / run_id
        folder.mkdir(parents=True)
        record = RunRecord(
            id=run_id, engine=engine, spec=spec, input_hash=input_hash, base=base, started=now.isoformat()
        )
        return cls(folder, record)

    @contextmanager
    def step(self, name: str) -> Iterator[StepRecord]:
        """Record a step: running, then done or failed with the error's message."""
        step = StepRecord(name=name, state="running")
        self.record.steps.append(step)
        self._save()
        began = time.monotonic()
        try:
            yield step
        except BaseException as error:
            step.state, step.message = "failed", f"{type(error).__name__}: {error}"
            self.record.state, self.record.message = "failed", step.message
            raise
        else:
            step.state = "done"
        finally:
            step.seconds = round(time.monotonic() - began, 3)
            self._save()

    def end(self, state: RunState, message: str, pull_request: int | None = None) -> None:
        """Record the outcome."""
        self.record.state, self.record.message, self.record.pull_request = state, message, pull_request
        self._save()
        self._alive.close()

    def _save(self) -> None:
        write_atomic(self.folder / "record.json", pretty_json(self.record.model_dump(mode="json")))


def list_runs(state: Path) -> list[RunRecord]:
    """All runs, newest first; one whose process ended without a word is `lost`.

    A record that cannot be read is an InputError naming the file.
    """
    return [read_record(path.parent) for path in sorted((state / "runs").glob("*/record.json"), reverse=True)]


def read_record(folder: Path) -> RunRecord:
    """The record in a run's folder. InputError if it is none."""
    path = folder / "record.json"
    try:
        return _as_it_is(RunRecord.model_validate_json(path.read_bytes()), folder)
    except ValidationError as error:
        raise InputError(f"{path}: not a run record ({error}); delete the run's folder") from error


def _as_it_is(record: RunRecord, folder: Path) -> RunRecord:
    if record.state != "running" or _is_alive(folder):
        return record
    step = record.steps[-1].name if record.steps else "its start"
    return record.model_copy(update={"state": "lost", "message": f"the process ended during {step}; run it again"})


def _is_alive(folder: Path) -> bool:
    try:
        with (folder / _ALIVE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
