"""A model asked in rounds, apart from where its units are judged, comes to what one process comes to."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from metainfer.agents.answering import ledger_mark, require_mark
from metainfer.agents.budget import Price, StoppedError, read_ledger
from metainfer.agents.client import EndpointError
from metainfer.agents.correspondence import RunId
from metainfer.agents.requests import PendingRequest, RequestsError
from metainfer.ckb.mutants import default_deployments
from metainfer.errors import InputError
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.scratch import scratch_inputs
from metainfer.pipeline.agents import NotWrittenError, Written
from metainfer.spec.models import Generation
from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS, fenced
from tests.agents.in_rounds import Desk
from tests.agents.roles_at_work import by_role, plan, role_of
from tests.agents.roles_script import MLP, NORM, ROPE, SCRIPT, implementer
from tests.agents.scripted_endpoint import Act, Writer, answers, fails, says, scripted

CKB = Path(__file__).parents[2] / "ckb"
KEY = "a-key-of-the-tests"
NO = says("I would rather not.")
_SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def inputs() -> EngineInputs:
    deployment = default_deployments()[0]
    return scratch_inputs(CKB, deployment.facts, deployment.model)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def desk(inputs: EngineInputs, state: Path, tmp_path: Path) -> Desk:
    return with_settings(Desk(inputs, Generation(), tmp_path, state))


def with_settings(desk: Desk, **settings: Any) -> Desk:
    given = {"contracts": [NORM], "roles": [], "rounds": 1} | settings
    generation = Generation(backend="agents", model="scripted", reference="none", **given)
    return replace(desk, settings=generation)


def repaired(body: dict[str, Any]) -> str:
    return fenced(RMSNORM if len(body["messages"]) > 2 else RMSNORM_WITHOUT_EPS)


def sampled(body: dict[str, Any]) -> str:
    return fenced(RMSNORM if body["temperature"] and body["seed"] == 2 else RMSNORM_WITHOUT_EPS)


def without_advice(answer: Act) -> Act:
    """An endpoint that answers neither the probe nor the planner, for reasons of its own."""

    async def act(writer: Writer, body: dict[str, Any]) -> None:
        if body["messages"][0]["role"] == "user":
            await says("x", finish="content_filter")(writer, body)
        else:
            await (fails(401) if role_of(body) == "planner" else answer)(writer, body)

    return act


ALL_ROLES = {"contracts": [NORM, MLP, ROPE], "roles": ["planner", "reviewer", "consolidator"]}
SCENES: dict[str, tuple[dict[str, Any], Act, int]] = {
    "a repair": ({}, answers(repaired), 2),
    "fallback": ({}, NO, 2),
    "a budget for none": ({"budget_tokens": 10}, answers(repaired), 1),
    "an answer that a filter ends": ({}, says("x", finish="content_filter"), 1),
}
SLOW_SCENES: dict[str, tuple[dict[str, Any], Act, int]] = {
    "all roles": (ALL_ROLES, answers(SCRIPT), 6),
    "best of three": ({"rounds": 0, "samples": 3}, answers(sampled), 3),
    "a budget for one answer": ({"budget_tokens": 5650, "rounds": 2}, answers(repaired), 2),
    "tools": ({"tools": True}, answers(repaired), 2),
}


@pytest.mark.parametrize(
    ("settings", "act", "rounds"),
    [
        *(pytest.param(*scene, id=name) for name, scene in SCENES.items()),
        *(pytest.param(*scene, id=name, marks=_SLOW) for name, scene in SLOW_SCENES.items()),
    ],
)
def test_rounds_come_to_what_one_process_comes_to(desk: Desk, settings: dict[str, Any], act: Act, rounds: int) -> None:
    at = with_settings(desk, **settings)
    at_once = at.at_once(act)
    in_rounds, asked = at.in_rounds(act)
    at.require_same(at_once, in_rounds, asked)
    assert asked == rounds
    if "budget_tokens" in settings:
        assert "budget of the run is used up" in in_rounds.outcomes[0].stopped


@pytest.mark.slow
def test_an_endpoint_that_fails_the_advisers_alone_is_worked_with_all_the_same(desk: Desk) -> None:
    """What it would not say is noted, so that it is neither asked nor paid for again in each round."""
    at = replace(with_settings(desk, contracts=[NORM, ROPE], roles=["planner"]), answers_probes=False)
    act = without_advice(answers(implementer))
    at_once = at.at_once(act)
    in_rounds, asked = at.in_rounds(act)
    at.require_same(at_once, in_rounds, asked)
    assert asked == 3
    assert at_once.record.tokens == in_rounds.record.tokens
    plans = [json.loads((at.folder / name / "plan.json").read_bytes()) for name in ("at-once", f"round-{asked}")]
    assert [plan["planned"] for plan in plans] == [False, False]
    assert all("answers 401" in plan["why"] for plan in plans)
    probes = [one for one in read_ledger(at.correspondence.ledger) if one.purpose.role == "probe"]
    assert [one.event for one in probes] == ["booked", "settled"]


def test_the_same_replies_give_the_same_questions_in_the_plans_order(desk: Desk) -> None:
    at = with_settings(desk, **ALL_ROLES)
    order = [MLP, ROPE, NORM]
    planned = by_role(planner=lambda body: plan(*((name, 1, 0, False) for name in order)))
    with scripted(answers(planned)) as endpoint:
        first = pending(at.advance("one"))
        assert [one.purpose.role for one in first] == ["planner"]
        at.ask(first, endpoint.base_url)
    questions = pending(at.advance("two"))
    assert [(one.purpose.role, one.purpose.subject) for one in questions] == [("implementer", name) for name in order]
    written = (at.folder / "requests.jsonl").read_bytes()
    assert pending(at.advance("two again")) == questions
    assert (at.folder / "requests.jsonl").read_bytes() == written


@pytest.mark.slow
def test_the_last_round_falls_back_as_the_spec_says(desk: Desk) -> None:
    written, asked = desk.in_rounds(answers(repaired), most=1)
    assert (asked, written.record.fell_back) == (1, (NORM,))
    assert written.outcomes[0].stopped == "the rounds of this run are used up"
    strict = with_settings(desk, fallback="none")
    with pytest.raises(NotWrittenError, match=NORM):
        strict.advance("strict", final=True)


@pytest.mark.slow
def test_what_a_round_judged_the_next_one_does_not(desk: Desk) -> None:
    with scripted(NO, answers(lambda _: fenced(RMSNORM))) as endpoint:
        at = with_settings(desk)
        at.ask(pending(at.advance("one")), endpoint.base_url)
        at.ask(pending(at.advance("two")), endpoint.base_url)
        assert isinstance(at.advance("three"), Written)
    [verdict] = (at.folder / "verdicts").rglob("*.json")
    verdict.write_text(json.dumps(["as another machine found it"]))
    again = at.advance("four")
    assert isinstance(again, Written)
    assert list(again.outcomes[0].attempts[1].findings) == ["as another machine found it"]
    verdict.write_text("{")
    judged = at.advance("five")
    assert isinstance(judged, Written)
    assert judged.outcomes[0].code is not None


def test_the_budget_is_one_over_all_rounds(desk: Desk) -> None:
    """One answer fits each time; if the ledger did not travel, every round could have one."""
    at = with_settings(desk, budget_tokens=7000, rounds=3)
    numbers = count()
    never_the_same = answers(lambda _: f"No, for the {next(numbers)}th time.")
    with scripted(never_the_same) as endpoint:
        answered = at.ask(pending(at.advance("one")), endpoint.base_url)
        assert (answered.replies, answered.refusals) == (1, {})
        answered = at.ask(pending(at.advance("two")), endpoint.base_url)
    assert (answered.replies, answered.refusals) == (1, {}), "an honest answer costs less than it may"
    ledger = at.correspondence.ledger
    lines = ledger.read_text().replace('"tokens":', '"tokens":9')
    ledger.write_text(lines)
    with scripted(never_the_same) as endpoint:
        answered = at.ask(pending(at.advance("three")), endpoint.base_url)
        assert (answered.replies, answered.refusals) == (0, {"budget": 1})
        assert endpoint.requests == []


@pytest.mark.parametrize(
    ("settings", "line", "words"),
    [
        ({"budget_usd": 0.001}, {"price": Price(input_usd=1.0, output_usd=1.0)}, "usd"),
        ({}, {"most_calls": 1}, "calls"),
        ({"budget_wall_s": 1e-9}, {}, "wall_s"),
    ],
    ids=["dollars", "calls", "wall time"],
)
def test_every_budget_is_held_before_a_call(
    desk: Desk, settings: dict[str, Any], line: dict[str, Any], words: str
) -> None:
    at = with_settings(desk, **settings)
    with scripted(NO) as endpoint:
        if "most_calls" in line:
            at.ask(pending(at.advance("zero")), endpoint.base_url, **line)
        sent = len(endpoint.requests)
        asked = pending(at.advance("one"))
        answered = at.ask(asked, endpoint.base_url, **line)
        assert (answered.replies, answered.refusals, len(endpoint.requests)) == (0, {"budget": 1}, sent)
    refusal = at.correspondence.refusal(asked[0].request)
    assert refusal is not None
    assert words in refusal.words


def test_a_person_stops_all_calls_and_the_run_goes_on_later(desk: Desk) -> None:
    with scripted(NO) as endpoint:
        asked = pending(desk.advance("one"))
        desk.correspondence.folder.mkdir(exist_ok=True)
        desk.correspondence.stop_file.touch()
        with pytest.raises(StoppedError, match="STOP"):
            desk.ask(asked, endpoint.base_url)
        desk.correspondence.stop_file.unlink()
        with pytest.raises(StoppedError, match="says a label"):
            desk.ask(asked, endpoint.base_url, halted=lambda: "says a label")
        assert endpoint.requests == []
        assert desk.ask(asked, endpoint.base_url).replies == 1


def test_what_came_before_an_endpoint_failed_is_kept_and_paid_once(desk: Desk) -> None:
    at = with_settings(desk, contracts=[NORM, MLP])
    asked = pending(at.advance("one"))
    with scripted(NO, fails(401)) as endpoint, pytest.raises(EndpointError, match="401"):
        at.ask(asked, endpoint.base_url, concurrency=1)
    kept = [one for one in asked if at.correspondence.replies.get(one.request)]
    assert kept == asked[:1]
    with scripted(NO) as endpoint:
        assert at.ask(asked, endpoint.base_url).replies == 2
        assert len(endpoint.requests) == 1


def test_no_key_stays_in_the_folder_though_the_endpoint_repeats_it(desk: Desk) -> None:
    with scripted(says(f"Your key is {KEY}."), fails(400, f"key {KEY} is wrong")) as endpoint:
        desk.ask(pending(desk.advance("one")), endpoint.base_url, api_key=KEY)
        url = endpoint.base_url.replace("://", "://somebody:hidden-word@")
        desk.ask(pending(desk.advance("two")), url, api_key=KEY)
        assert endpoint.headers[0]["authorization"].endswith(KEY)
    texts = {path: path.read_text() for path in desk.correspondence.folder.rglob("*") if path.is_file()}
    assert len(texts) >= 6
    assert [path for path, text in texts.items() if KEY in text or "hidden-word" in text] == []


def test_a_ledger_that_forgets_is_noticed(desk: Desk) -> None:
    with scripted(NO) as endpoint:
        first = desk.ask(pending(desk.advance("one")), endpoint.base_url)
        desk.ask(pending(desk.advance("two")), endpoint.base_url)
    folder = desk.correspondence
    require_mark(folder, first.mark)  # it has grown since
    whole = folder.ledger.read_bytes()
    for forged in (whole.replace(b'"usd":0', b'"usd":1', 1), whole[:-1], b""):
        folder.ledger.write_bytes(forged)
        require_mark(folder, ledger_mark(folder))
        with pytest.raises(RequestsError, match="forgets"):
            require_mark(folder, f"{len(whole)}:{ledger_mark_of(whole)}")
    for odd in ("", "x:y", "-1:0", "12", f"{10**30}:0"):
        with pytest.raises(RequestsError, match="forgets"):
            require_mark(folder, odd)


def test_a_folder_of_another_run_is_refused(desk: Desk) -> None:
    folder = desk.correspondence
    folder.begin(desk.run)
    folder.require(desk.run)
    with pytest.raises(InputError, match="with another spec, budget or prompts"):
        folder.begin(RunId(engine="scratch", digest="1" * 64))
    folder.ledger.touch()
    (folder.folder / "run.json").unlink()
    with pytest.raises(InputError, match=r"no run\.json"):
        folder.require(desk.run)


def test_the_ledger_in_the_end_is_that_of_the_rounds(desk: Desk) -> None:
    written, asked = desk.in_rounds(NO)
    there = list(read_ledger(desk.correspondence.ledger))
    assert list(read_ledger(desk.folder / f"round-{asked}" / "ledger.jsonl")) == there
    assert written.record.tokens == sum({one.call: one.tokens for one in there}.values()) > 0


def pending(found: Written | list[PendingRequest]) -> list[PendingRequest]:
    assert isinstance(found, list)
    return found


def ledger_mark_of(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()
