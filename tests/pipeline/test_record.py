"""A run's record is on disk after every step, whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.errors import InputError
from metainfer.pipeline.record import RunLog, RunRecord, list_runs


def begin(state: Path) -> RunLog:
    return RunLog.begin(state, engine="tiny", spec="specs/tiny.yaml", input_hash="0" * 64, base="1" * 40)


def on_disk(log: RunLog) -> RunRecord:
    return RunRecord.model_validate_json((log.folder / "record.json").read_bytes())


def test_a_running_step_is_on_disk_before_it_ends(tmp_path: Path) -> None:
    log = begin(tmp_path)
    with log.step("gates"):
        assert [(s.name, s.state) for s in on_disk(log).steps] == [("gates", "running")]
    assert [(s.name, s.state) for s in on_disk(log).steps] == [("gates", "done")]


def test_a_failed_step_keeps_its_error_and_fails_the_run(tmp_path: Path) -> None:
    log = begin(tmp_path)
    with pytest.raises(ValueError, match="bad weights"), log.step("numerics"):
        raise ValueError("bad weights")
    record = on_disk(log)
    assert record.state == "failed"
    assert record.steps[0].message == "ValueError: bad weights"


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    first, second = begin(tmp_path), begin(tmp_path)
    second.end("published", "created", 7)
    ids = [record.id for record in list_runs(tmp_path)]
    assert sorted(ids, reverse=True) == ids
    assert {first.record.id, second.record.id} == set(ids)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    log = begin(tmp_path)
    (log.folder / "record.json").write_text("{")
    with pytest.raises(InputError, match=r"record\.json: not a run record"):
        list_runs(tmp_path)
