"""The planner orders and weighs; what it may not decide, code decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.agents.budget import Limits
from metainfer.agents.leakage import leaks
from metainfer.agents.planner import Plan, Step, Terms, default_plan, make_plan, planner_prompt
from tests.agents.roles_at_work import CKB, ask_with, contract, plan
from tests.agents.scripted_endpoint import ScriptedEndpoint, says
from tests.agents.snapshots import require_reviewed

NORM, LINEAR, MLP = "family/rmsnorm", "family/linear", "family/swiglu-mlp"


def terms(may_leave: bool = True, *names: str) -> Terms:
    budget = Limits(tokens=100_000, wall_s=600.0)
    chosen = names or (NORM, LINEAR, MLP)
    return Terms([contract(name) for name in chosen], 2, 1, budget, chosen if may_leave else (LINEAR,))


def make(folder: Path, text: str, given: Terms | None = None) -> tuple[Plan, ScriptedEndpoint]:
    own = given or terms()
    return ask_with(folder, says(text), lambda asker: make_plan(own, asker, "tiny"))


def test_the_prompt_is_as_it_was_reviewed() -> None:
    require_reviewed("planner", planner_prompt(terms()))


def test_it_sees_no_text_of_a_contract_and_no_code() -> None:
    prompt = "\n".join(message.content for message in planner_prompt(terms()))
    for name in (NORM, LINEAR, MLP):
        assert contract(name).title in prompt
        assert contract(name).semantics.strip()[:60] not in prompt
        for file in (CKB / name).rglob("*.py"):
            assert leaks(prompt, file.read_text(), []) == [], file


def test_a_plan_that_holds_is_followed(tmp_path: Path) -> None:
    made, endpoint = make(tmp_path, plan((LINEAR, 1, 0, False), (NORM, 0, 1, True), (MLP, 2, 1, False)))
    assert made.planned
    assert made.steps == (Step(LINEAR, 1, 0), Step(NORM, 0, 1, leave=True), Step(MLP, 2, 1))
    assert made.why == "Easy ones first."
    assert len(endpoint.requests) == 1


def test_efforts_are_clipped_to_what_the_spec_allows(tmp_path: Path) -> None:
    made, _ = make(tmp_path, plan((NORM, 99, -3, False), (LINEAR, -1, 99, False), (MLP, 2, 1, False)))
    assert made.steps == (Step(NORM, 2, 0), Step(LINEAR, 0, 1), Step(MLP, 2, 1))


def test_what_a_contract_requires_comes_before_it(tmp_path: Path) -> None:
    made, _ = make(tmp_path, plan((MLP, 1, 0, False), (NORM, 1, 0, False), (LINEAR, 1, 0, False)))
    assert [step.contract for step in made.steps] == [LINEAR, MLP, NORM]


def test_nothing_is_left_that_must_be_written(tmp_path: Path) -> None:
    text = plan((NORM, 1, 0, True), (LINEAR, 1, 0, True), (MLP, 1, 0, True))
    made, _ = make(tmp_path, text, terms(False))
    assert made.planned
    assert [step.contract for step in made.steps if step.leave] == [LINEAR]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (plan((NORM, 1, 0, False), (LINEAR, 1, 0, False)), "leaves out family/swiglu-mlp"),
        (plan(*((name, 1, 0, False) for name in (NORM, LINEAR, MLP, "family/x"))), "not to be written: family/x"),
        (plan(*((name, 1, 0, False) for name in (NORM, LINEAR, MLP, NORM))), "more than once: family/rmsnorm"),
        (plan(*((name, 1, 0, True) for name in (NORM, LINEAR, MLP))), "leaves every contract"),
        ("First the norm, then the rest.", "Invalid JSON"),
        ('{"contracts": "all", "why": ""}', "valid array"),
    ],
    ids=["one left out", "one too many", "one twice", "all left", "words", "another form"],
)
def test_a_plan_that_does_not_hold_is_none(tmp_path: Path, text: str, why: str) -> None:
    made, endpoint = make(tmp_path, text)
    assert made.steps == default_plan(terms()).steps
    assert not made.planned
    assert why in made.why
    assert len(endpoint.requests) == 2
    assert why in endpoint.requests[1]["messages"][-1]["content"]


def test_one_contract_needs_no_plan(tmp_path: Path) -> None:
    made, endpoint = make(tmp_path, "no", terms(True, NORM))
    assert made.steps == (Step(NORM, 2, 1),)
    assert endpoint.requests == []
