"""The check of answers itself: it lets pass what GitHub describes, and sees what it does not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.github.openapi import SWITCH, Description, checked_answers, read_description
from tests.github.places import Acting
from tests.github.stub import Stub
from tests.github.stub.app import Answer
from tests.github.tools import github_description


@pytest.fixture
def answers(stub: Stub, on_stub: Acting) -> list[Answer]:
    """Those of a small publication and a look at it."""
    on_stub.publish()
    on_stub.forge.get(1)
    return list(stub.journal.answers)


@pytest.fixture
def description() -> Description:
    return read_description(github_description())


def of(answers: list[Answer], method: str, route: str) -> Answer:
    return next(each for each in answers if (each.method, each.route) == (method, route))


def without(name: str) -> Callable[[Any], Any]:
    return lambda data: {key: value for key, value in data.items() if key != name}


@pytest.mark.github
def test_what_github_describes_passes(answers: list[Answer], description: Description) -> None:
    assert len(answers) >= 4
    assert [problem for answer in answers for problem in description.problems(answer)] == []


@pytest.mark.github
@pytest.mark.parametrize(
    "change", [without("head"), without("number"), lambda data: data | {"state": "merged"}, lambda data: [data]]
)
def test_an_answer_that_is_not_as_described_is_seen(
    answers: list[Answer], description: Description, change: Callable[[Any], Any]
) -> None:
    good = of(answers, "GET", "/repos/{owner}/{repo}/pulls/{pull_number}")
    bad = dataclasses.replace(good, body=json.dumps(change(json.loads(good.body))).encode())
    assert description.problems(good) == []
    assert description.problems(bad)


@pytest.mark.github
@pytest.mark.parametrize(
    "change",
    [
        {"route": "/repos/{owner}/{repo}/nothing"},
        {"method": "DELETE"},
        {"status": 299},
        {"query": "colour=red"},
        {"body": b""},
    ],
)
def test_a_call_that_github_does_not_know_is_seen(
    answers: list[Answer], description: Description, change: dict[str, Any]
) -> None:
    good = of(answers, "GET", "/repos/{owner}/{repo}/pulls")
    assert description.problems(dataclasses.replace(good, **change))


@pytest.mark.github
def test_a_body_that_github_would_not_take_is_seen(answers: list[Answer], description: Description) -> None:
    good = of(answers, "POST", "/repos/{owner}/{repo}/pulls")
    assert description.problems(dataclasses.replace(good, sent=b'{"head": 1, "base": "main"}'))


def test_without_the_switch_nothing_is_fetched(answers: list[Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)

    def fetch() -> None:
        raise AssertionError("a machine without a network has no description")

    monkeypatch.setattr("tests.github.openapi.github_description", fetch)
    assert checked_answers(answers) == []
    monkeypatch.setenv(SWITCH, "1")
    with pytest.raises(AssertionError, match="without a network"):
        checked_answers(answers)
