"""A run in rounds comes to what the same run comes to in one process: engine, manifest and conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.pipeline.replay import replay
from tests.agents.roles_script import MLP, NORM, ROPE, SCRIPT
from tests.agents.scripted_endpoint import answers
from tests.ci.repositories import ENGINE
from tests.ci.rounds import Split, engine_bytes, talk


@pytest.mark.slow
def test_all_roles(tmp_path: Path) -> None:
    split = Split(tmp_path, {"reference": "none", "rounds": 1, "contracts": [NORM, MLP, ROPE]})
    advanced, _ = split.loop(answers(SCRIPT))
    result, _ = split.run_at_once(answers(SCRIPT))
    assert (advanced.state, result.status) == ("done", "published"), (advanced, result)
    assert advanced.input_hash == result.input_hash
    assert engine_bytes(split.out / "bundle" / "engine") == engine_bytes(result.run_folder / ENGINE)
    for name in ("plan.json", "outcomes.json", "lessons.json", "proposal.json"):
        assert (advanced.run_folder / name).read_bytes() == (result.run_folder / name).read_bytes(), name
    assert talk(advanced.run_folder / "transcript.jsonl") == talk(result.run_folder / "transcript.jsonl")
    assert replay(advanced.run_folder, ENGINE, split.work / "ckb") == []
