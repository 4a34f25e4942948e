"""Commands on an engine's folder or name: which folder they take, and what they say about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from metainfer.errors import ExitCode
from tests.forge.engines import engine_files

_MAIN = "from metainfer.cli import main; main()"


def metainfer(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "METAINFER_FORGE"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", _MAIN, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def write(folder: Path, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


@pytest.mark.parametrize("command", [["gate", "static"], ["verify"], ["bench"]])
def test_a_bad_spec_in_a_manifest_is_one_message_that_names_the_manifest(tmp_path: Path, command: list[str]) -> None:
    write(tmp_path / "engine", engine_files())
    manifest = tmp_path / "engine/manifest.json"
    record = json.loads(manifest.read_text())
    record["spec"]["workload"]["max_model_len"] = "long"
    manifest.write_text(json.dumps(record))
    result = metainfer(*command, "engine", cwd=tmp_path)
    assert result.returncode == ExitCode.BAD_INPUT
    assert result.stderr.startswith("error: engine/manifest.json: spec.")
    assert "generate the engine again" in result.stderr
    assert len(result.stderr.splitlines()) == 1
