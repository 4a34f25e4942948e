"""What `metainfer init` writes is in the wheel: nothing of it is read from a checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_holds_knowledge_example_and_callers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--", "ckb"], check=True, capture_output=True, text=True
    ).stdout.split("\0")
    wanted = {f"metainfer/shipped/{path}" for path in tracked if path} | {"metainfer/shipped/specs/tiny-qwen3.yaml"}
    assert wanted <= names
    assert {name for name in names if "/callers/" in name}
