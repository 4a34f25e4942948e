"""Labels on pull requests, and the one that keeps every model from being asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.agents.budget import StoppedError
from metainfer.forge.dryrun import DryRun
from metainfer.forge.local import LocalForge
from metainfer.forge.protocol import STOP_LABEL
from metainfer.pipeline.stopping import stop_label_watch
from tests.agents.conftest import Desk, question
from tests.agents.scripted_endpoint import says, scripted
from tests.forge.engines import ALICE, ENGINE, request
from tests.forge.test_people import AS_ALICE, metainfer


@pytest.fixture
def pull(forge: LocalForge) -> LocalForge:
    """A forge with an open pull request, number 1."""
    forge.publish(request(forge))
    return forge


def test_a_dry_run_says_it_and_puts_nothing_on(pull: LocalForge) -> None:
    said: list[str] = []
    assert DryRun(pull, said.append).label(1, ALICE, STOP_LABEL).labels == ()
    assert said == [f"would put the label {STOP_LABEL} on pull request #1 as alice@example.org"]


def test_the_command_line_puts_it_on_shows_it_and_takes_it_off(pull: LocalForge, source_repo: Path) -> None:
    assert metainfer(pull, source_repo, "pr", "label", "1", STOP_LABEL, *AS_ALICE).stdout == f"#1: {STOP_LABEL}\n"
    assert f"· {STOP_LABEL}" in metainfer(pull, source_repo, "pr", "show", "1").stdout.replace("\n", " ")
    assert (
        metainfer(pull, source_repo, "pr", "label", "1", STOP_LABEL, "--remove", *AS_ALICE).stdout == "#1: no labels\n"
    )


def test_the_forge_is_looked_at_again_after_a_while(pull: LocalForge) -> None:
    now = [0.0]
    halted = stop_label_watch(pull, ENGINE, fresh_s=5.0, clock=lambda: now[0])
    assert halted() == ""
    pull.label(1, ALICE, STOP_LABEL)
    now[0] = 4.9
    assert halted() == ""
    now[0] = 5.0
    assert halted() == f"pull request #1 bears the label {STOP_LABEL}; take it off to go on"
    assert stop_label_watch(pull, "another-engine")() == ""


def test_the_label_stops_before_the_next_call(pull: LocalForge, tmp_path: Path) -> None:
    desk = Desk(tmp_path, halted=stop_label_watch(pull, ENGINE, fresh_s=0.0))
    with scripted(says("fine")) as endpoint:
        desk.ask(endpoint.base_url, question())
        pull.label(1, ALICE, STOP_LABEL)
        with pytest.raises(StoppedError, match="take it off"):
            desk.ask(endpoint.base_url, question("another"))
        assert len(endpoint.requests) == 1
        assert desk.ask(endpoint.base_url, question())[0].text == "fine"  # what is kept costs nothing
