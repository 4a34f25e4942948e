"""Events hold what anybody wrote: they are read by their shape, and what does not fit is no event for us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metainfer.errors import InputError
from metainfer.review.event import Event, Group, Remark, run_url, sibling

SHA = "a" * 40


def written(tmp_path: Path, name: str, payload: Any) -> Event:
    path = tmp_path / "event.json"
    path.write_text(payload if isinstance(payload, str) else json.dumps(payload))
    return Event.read({"GITHUB_EVENT_PATH": str(path), "GITHUB_EVENT_NAME": name})


def commented(**changes: Any) -> dict[str, Any]:
    comment = {"id": 5, "body": "/metainfer retry", "user": {"login": "alice", "type": "User"}}
    issue = {"number": 3, "pull_request": {"url": "x"}}
    return {"action": "created", "issue": issue, "comment": comment, **changes}


def test_a_comment_on_a_pull_request(tmp_path: Path) -> None:
    event = written(tmp_path, "issue_comment", commented())
    assert event.remark() == Remark(5, 3, "alice", "/metainfer retry")
    assert event.pull_number() == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"action": "edited"},
        {"issue": {"number": 3}},
        {"comment": {"id": 5, "body": "x", "user": {"login": "../../x"}}},
        {"comment": {"id": 5, "body": None, "user": {"login": "a"}}},
        {"comment": {"id": True, "body": "x", "user": {"login": "a"}}},
        {"comment": {"id": 5, "body": "x", "user": None}},
        {"comment": []},
    ],
)
def test_what_is_no_new_comment_on_a_pull_request(changes: dict[str, Any], tmp_path: Path) -> None:
    assert written(tmp_path, "issue_comment", commented(**changes)).remark() is None


def test_a_comment_in_another_kind_of_event_is_not_obeyed(tmp_path: Path) -> None:
    assert written(tmp_path, "pull_request_review_comment", commented()).remark() is None


def test_a_merge_group_names_its_pull_request(tmp_path: Path) -> None:
    group = {"head_sha": SHA, "head_ref": f"refs/heads/gh-readonly-queue/main/pr-12-{SHA}"}
    assert written(tmp_path, "merge_group", {"merge_group": group}).group() == Group(SHA, 12)
    with pytest.raises(InputError):
        written(tmp_path, "merge_group", {"merge_group": {**group, "head_ref": "refs/heads/pr-12"}}).group()


def test_a_review_is_about_its_pull_request_and_a_push_about_none(tmp_path: Path) -> None:
    assert written(tmp_path, "pull_request_review", {"pull_request": {"number": 4}}).pull_number() == 4
    assert written(tmp_path, "push", {"ref": "refs/heads/main"}).pull_number() is None


@pytest.mark.parametrize("text", ["[]", "no", "[" * 100_000, '"x"'])
def test_what_is_no_event_is_an_error_and_no_traceback(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no event"):
        written(tmp_path, "push", text)


def test_outside_of_a_workflow_there_is_no_event() -> None:
    with pytest.raises(InputError, match="GITHUB_EVENT_PATH"):
        Event.read({})
    assert run_url({}) == ""


def test_a_sibling_of_a_caller_is_a_caller() -> None:
    def here(file: str) -> dict[str, str]:
        return {"GITHUB_WORKFLOW_REF": f"o/r/.github/workflows/{file}@refs/heads/metainfer-x"}

    assert sibling("generate.yml", here("comment.yml")) == "generate.yml"
    assert sibling("generate.yml", here("metainfer-comment.yml")) == "metainfer-generate.yml"
    assert sibling("generate.yml", {}) == "generate.yml"
