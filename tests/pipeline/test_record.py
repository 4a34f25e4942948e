"""A run's record is on disk after every step, whatever happens."""

from __future__ import annotations

import subprocess
import sys
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


def test_a_run_is_running_while_its_process_lives_and_lost_once_it_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom tests.pipeline.test_record import begin\n"
        "with begin(Path(sys.argv[1])).step('gates'):\n    print('in it', flush=True)\n    time.sleep(60)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=root, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [record.state for record in list_runs(tmp_path)] == ["running"]
        process.kill()
    (lost,) = list_runs(tmp_path)
    assert lost.state == "lost"
    assert "gates" in lost.message
