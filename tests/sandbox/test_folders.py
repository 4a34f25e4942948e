"""The folders that commands work in are gone after them, however they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from metainfer.sandbox import folders

_WORKING = """
import pathlib, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
from metainfer.sandbox import Sandbox
with Sandbox().room() as room, room.serve([room.python, "-c", "import time; time.sleep(60)"], port=8000):
    print("working", flush=True)
    room.run(["sleep", "60"])
"""


def start(tmp_path: Path) -> subprocess.Popen[str]:
    """A process at work in a room and a server's folder below `tmp_path`."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", _WORKING], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    assert len(left(tmp_path)) == 2
    return process


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir())


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(folders.tempfile, "tempdir", str(tmp_path))
    folders.sweep.cache_clear()
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_command_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path)
    process.send_signal(number)
    assert process.wait(20) == 128 + number
    assert left(tmp_path) == []


def test_what_a_killed_command_left_is_swept_by_the_next(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(temporary)
    process.kill()
    process.wait(20)
    abandoned = left(temporary)
    assert len(abandoned) == 2
    folders.sweep()
    assert left(temporary) == abandoned  # too young to be sure that nobody is about to lock them
    monkeypatch.setattr(folders, "_UNLOCKED_S", 0.0)
    deadline = time.monotonic() + 20
    while left(temporary) and time.monotonic() < deadline:  # what it ran may outlive it by a moment, and hold the locks
        folders.sweep.cache_clear()
        folders.sweep()
        time.sleep(0.05)
    assert left(temporary) == []


def test_a_folder_in_use_and_folders_of_others_are_not_swept(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_UNLOCKED_S", 0.0)
    (temporary / "metainfer-job-of-mine").mkdir()
    (temporary / "elsewhere").mkdir()
    (temporary / "metainfer-job-aaaaaaaa").symlink_to(temporary / "elsewhere")
    with folders.own_folder("job") as used:
        folders.sweep.cache_clear()
        folders.sweep()
        assert left(temporary) == sorted(["elsewhere", "metainfer-job-aaaaaaaa", "metainfer-job-of-mine", used.name])
    assert not used.exists()


def test_signals_are_as_before_afterwards_and_handlers_of_others_are_kept(temporary: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with folders.own_folder("job"), folders.own_folder("net"):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is folders._unwind
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_may_have_a_folder_too(temporary: Path) -> None:
    seen: list[bool] = []

    def work() -> None:
        with folders.own_folder("job") as folder:
            seen.append(folder.is_dir())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
    assert left(temporary) == []
