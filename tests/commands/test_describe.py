"""The outcome of a run in words."""

from __future__ import annotations

import pytest

from metainfer.commands.run import describe
from metainfer.console import strip_markup
from metainfer.forge import PublishOutcome, Status
from metainfer.pipeline.run import RunResult


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
