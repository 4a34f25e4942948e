"""A run in rounds comes to what the same run comes to in one process: engine, manifest and conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metainfer.agents.budget import StoppedError, read_ledger
from metainfer.agents.client import EndpointError
from metainfer.pipeline.advance import Advanced
from metainfer.pipeline.agents import NotWrittenError
from metainfer.pipeline.replay import replay
from metainfer.pipeline.run import RunResult
from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS, fenced
from tests.agents.roles_script import MLP, NORM, ROPE, SCRIPT
from tests.agents.scripted_endpoint import Act, answers, fails, says, scripted
from tests.ci.repositories import ENGINE
from tests.ci.rounds import Split, engine_bytes, talk

pytestmark = pytest.mark.slow

ONE = {"reference": "none", "rounds": 1, "contracts": [NORM], "roles": []}
HOLDS_ALONE = RMSNORM.replace("        power =", 500 * "        x = x + 0.0\n" + "        power =")
"""Right, and longer than a whole engine has room for: nothing but a gate over the whole finds it."""


def require_same(split: Split, advanced: Advanced, result: RunResult, names: tuple[str, ...]) -> None:
    assert (advanced.state, result.status) == ("done", "published"), (advanced, result)
    assert advanced.run_folder is not None
    assert result.run_folder is not None
    assert advanced.input_hash == result.input_hash
    assert engine_bytes(split.out / "bundle" / "engine") == engine_bytes(result.run_folder / ENGINE)
    for name in names:
        assert (advanced.run_folder / name).read_bytes() == (result.run_folder / name).read_bytes(), name
    assert talk(advanced.run_folder / "transcript.jsonl") == talk(result.run_folder / "transcript.jsonl")
    assert replay(advanced.run_folder, ENGINE, split.work / "ckb") == []


def test_all_roles(tmp_path: Path) -> None:
    split = Split(tmp_path, {"reference": "none", "rounds": 1, "contracts": [NORM, MLP, ROPE]})
    advanced, asked = split.loop(answers(SCRIPT))
    result, _ = split.run_at_once(answers(SCRIPT))
    require_same(split, advanced, result, ("plan.json", "outcomes.json", "lessons.json", "proposal.json"))
    assert asked == 6, "plan, answers, repair and reviews, mending, a second review, lessons"


def test_what_breaks_the_engine_as_a_whole_falls_back_in_both(tmp_path: Path) -> None:
    split = Split(tmp_path, ONE)
    act = answers(lambda body: fenced(HOLDS_ALONE))
    advanced, asked = split.loop(act)
    result, _ = split.run_at_once(act)
    require_same(split, advanced, result, ("plan.json", "outcomes.json"))
    manifest = json.loads((split.out / "bundle/engine/manifest.json").read_bytes())
    assert (asked, manifest["agent"]["fell_back"]) == (1, [NORM])


def test_a_red_engine_is_red_in_both_and_bundled_in_neither(tmp_path: Path) -> None:
    split = Split(tmp_path, ONE | {"fallback": "none"})
    act = answers(lambda body: fenced(HOLDS_ALONE))
    advanced, _ = split.loop(act)
    result, _ = split.run_at_once(act)
    assert (advanced.state, result.status) == ("red", "red")
    assert advanced.message in result.message
    assert not (split.out / "bundle").exists()
    assert [(report.gate, report.verdict) for report in advanced.gates] == [
        (report.gate, report.verdict) for report in result.gates
    ]


@pytest.mark.parametrize("settings", [{}, {"budget_tokens": 100}], ids=["effort", "budget"])
def test_where_nothing_may_take_its_place_both_end_in_the_same_words(tmp_path: Path, settings: dict[str, Any]) -> None:
    split = Split(tmp_path, ONE | {"fallback": "none"} | settings)
    no = says("I would rather not.")
    with pytest.raises(NotWrittenError) as in_rounds:
        split.loop(no)
    with pytest.raises(NotWrittenError) as at_once:
        split.run_at_once(no)
    assert str(in_rounds.value) == str(at_once.value)


def repaired(body: dict[str, Any]) -> str:
    return fenced(RMSNORM if len(body["messages"]) > 2 else RMSNORM_WITHOUT_EPS)


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        pytest.param("endpoint", EndpointError, id="an endpoint that fails"),
        pytest.param("stop", StoppedError, id="a person who stops it"),
    ],
)
def test_what_was_cut_off_goes_on_and_comes_to_the_same(tmp_path: Path, trouble: str, error: type[Exception]) -> None:
    split = Split(tmp_path, ONE)
    act: Act = answers(repaired)
    first = split.advance()
    assert first.pending == 1
    with scripted(act) as endpoint:
        mark = split.ask(endpoint.base_url).mark
    assert split.advance().pending == 1
    line = {"halted": lambda: "says a label"} if trouble == "stop" else {}
    with scripted(fails(401)) as endpoint, pytest.raises(error):
        split.ask(endpoint.base_url, mark, **line)
    assert split.advance().pending == 1, "the question is still there"
    with scripted(act) as endpoint:
        split.ask(endpoint.base_url, mark)
    advanced = split.advance()
    result, _ = split.run_at_once(act)
    require_same(split, advanced, result, ("plan.json", "outcomes.json"))
    paid = [one for one in read_ledger(split.replies / "ledger.jsonl") if one.event == "settled" and one.tokens]
    assert len(paid) == 2, "each question once"
