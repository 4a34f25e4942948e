"""The outcome of a run in words."""

from __future__ import annotations

import pytest

from metainfer.commands.run import as_data, describe
from metainfer.console import strip_markup
from metainfer.forge import PublishOutcome, Status
from metainfer.pipeline.run import RunResult, RunStatus


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("pull request #1: inputs changed", "x: published. pull request #1: inputs changed"),
        ("new pull request", "x: published. pull request #1: new pull request"),
        ("new, after pull request #12", "x: published. pull request #1: new, after pull request #12"),
    ],
)
def test_a_pull_request_is_named_once(reason: str, shown: str) -> None:
    outcome = PublishOutcome(Status.UPDATED, reason, 1)
    text = strip_markup(describe(RunResult("published", "x", "sha256:aa", reason, outcome=outcome)))
    assert text.splitlines()[0] == shown


@pytest.mark.parametrize(
    ("run_status", "forge_status", "told"),
    [
        ("planned", Status.CREATED, "would-create"),
        ("planned", Status.UPDATED, "would-update"),
        ("planned", Status.CLOSED, "would-regenerate"),
        ("published", Status.CREATED, "created"),
        ("unchanged", Status.CLOSED, "closed"),
    ],
)
def test_programs_are_not_told_that_a_plan_was_carried_out(
    run_status: RunStatus, forge_status: Status, told: str
) -> None:
    outcome = PublishOutcome(forge_status, "a reason", 1)
    assert as_data(RunResult(run_status, "x", "sha256:aa", "a reason", outcome=outcome))["forge"] == told
