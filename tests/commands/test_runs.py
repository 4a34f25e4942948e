"""What `metainfer runs` shows of earlier runs, in which models, endpoints and code have spoken."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metainfer.agents.budget import Purpose
from metainfer.agents.messages import ChatRequest, Message
from metainfer.agents.transcript import Transcript, Turn
from metainfer.cli import app
from metainfer.pipeline.record import RunLog

HOSTILE = "no\x1b[2J\x1b[31m\u202e model"


def test_no_run_of_the_past_moves_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    begun = {"engine": "tiny", "spec": "specs/tiny.yaml", "input_hash": "0" * 64, "base": "1" * 40}
    log = RunLog.begin(tmp_path / ".metainfer", **begun)
    with pytest.raises(ValueError, match="no"), log.step("generate"):
        raise ValueError(HOSTILE)
    log.end("failed", HOSTILE)
    asked = ChatRequest(model="m", messages=(Message(role="user", content="x"),), max_tokens=1)
    purpose = Purpose(role="implementer", subject="a/b")
    Transcript(log.folder / "transcript.jsonl").add(Turn(purpose=purpose, request=asked, error=HOSTILE))
    for command in (["runs", "list"], ["runs", "show", log.record.id[:8]]):
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0
        assert "no\\x1b[2J\\x1b[31m\\u202e model" in result.output
        assert all(line.isprintable() for line in result.output.splitlines())
