"""Random lives of an engine's pull requests, compared step by step with a model small enough to be read as the rule.

The model knows nothing of Git: it is a handful of variables that say what a user of the bot may expect.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from metainfer.forge.markers import branch_of
from metainfer.forge.plumbing import RefUpdate
from metainfer.forge.protocol import MergeRefusedError, Status
from tests.forge.engines import ALICE, BOB, ENGINE, FOLDER, commit_on, copy_forge, refs, request

BRANCH = f"refs/heads/{branch_of(ENGINE)}"
HASHES = st.sampled_from(["sha256:1", "sha256:2", "sha256:3"])


@dataclass
class Pull:
    """What the model knows of one pull request."""

    inputs: str
    state: str = "open"
    by_person: bool = False
    approved: bool = False


class PullRequestLife(RuleBasedStateMachine):
    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="metainfer-life-"))
        self.forge = copy_forge(self.template, self.folder / "forge.git")
        self.pulls: list[Pull] = []
        self.on_base: str | None = None
        self.persons_commit = False
        self.branch_gone = False

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def open(self) -> Pull | None:
        return next((pull for pull in self.pulls if pull.state == "open"), None)

    def expected(self, inputs: str, regenerate: bool) -> Status:
        if self.persons_commit and not regenerate:
            return Status.BLOCKED
        if inputs == self.on_base:
            return Status.UNCHANGED
        if self.open:
            same = self.open.inputs == inputs and not self.persons_commit and not self.branch_gone
            return Status.UNCHANGED if same else Status.UPDATED
        since_merge: list[Pull] = []
        for pull in self.pulls:
            since_merge = [] if pull.state == "merged" else [*since_merge, pull]
        if not regenerate and any(pull.by_person and pull.inputs == inputs for pull in since_merge):
            return Status.CLOSED
        return Status.CREATED

    @initialize()
    def start(self) -> None:
        assert self.forge.list("all") == []

    @rule(inputs=HASHES, regenerate=st.booleans())
    def publish(self, inputs: str, regenerate: bool) -> None:
        expected = self.expected(inputs, regenerate)
        before = refs(self.forge)
        if not regenerate:
            assert self.forge.preview(ENGINE, inputs).status is expected
        assert refs(self.forge) == before
        outcome = self.forge.publish(request(self.forge, inputs, regenerate=regenerate))
        assert outcome.status is expected
        if expected is Status.CREATED:
            self.pulls.append(Pull(inputs))
        elif expected is Status.UPDATED and self.open:
            put_back = self.branch_gone and not self.persons_commit and self.open.inputs == inputs and not regenerate
            self.open.approved = self.open.approved and put_back
            self.open.inputs = inputs
        elif expected is Status.UNCHANGED and inputs == self.on_base and self.open:
            self.open.state = "closed"
        if outcome.wrote:
            self.persons_commit = self.branch_gone = False
        elif expected is not Status.BLOCKED and not (self.open is None and expected is Status.UNCHANGED):
            assert refs(self.forge) == before

    @precondition(lambda self: self.open and not self.branch_gone and not self.persons_commit)
    @rule()
    def person_commits(self) -> None:
        commit_on(self.forge, branch_of(ENGINE), {f"{FOLDER}README.md": b"# by hand\n"})
        self.persons_commit = True

    @precondition(lambda self: self.open and not self.branch_gone)
    @rule()
    def branch_is_deleted(self) -> None:
        tip = self.forge.repo.commit_at(BRANCH)
        assert self.forge.repo.move_refs([RefUpdate(BRANCH, None, tip)], "delete")
        self.branch_gone, self.persons_commit = True, False

    @precondition(lambda self: self.open)
    @rule()
    def approve(self) -> None:
        assert self.open
        self.forge.approve(len(self.pulls), BOB)
        self.open.approved = True

    @precondition(lambda self: self.open)
    @rule()
    def close(self) -> None:
        assert self.open
        self.forge.close(len(self.pulls), BOB)
        self.open.by_person, self.open.state = True, "closed"

    @precondition(lambda self: self.open)
    @rule()
    def merge(self) -> None:
        pull = self.open
        assert pull
        if pull.approved and not self.persons_commit and not self.branch_gone:
            self.forge.merge(len(self.pulls), ALICE)
            pull.state, self.on_base = "merged", pull.inputs
        else:
            before = refs(self.forge)
            with pytest.raises(MergeRefusedError):
                self.forge.merge(len(self.pulls), ALICE)
            assert refs(self.forge) == before

    @rule(name=st.sampled_from(["a", "b"]))
    def base_moves_elsewhere(self, name: str) -> None:
        commit_on(self.forge, "main", {f"docs/{name}.md": self.forge.base_sha().encode()})

    @invariant()
    def the_forge_agrees_with_the_model(self) -> None:
        pulls = self.forge.list("all")
        assert [(p.state, p.input_hash) for p in pulls] == [(p.state, p.inputs) for p in self.pulls]
        assert sum(pull.state == "open" for pull in pulls) <= 1
        found = self.forge.find_open(ENGINE)
        assert (found is not None) == (self.open is not None)
        if found and not self.persons_commit and not self.branch_gone:
            assert self.forge.repo.commit_at(BRANCH) == found.head


def _run(template: Path, examples: int, steps: int) -> None:
    machine = type("Life", (PullRequestLife,), {"template": template})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


def test_random_lives_follow_the_model(template: Path) -> None:
    _run(template, examples=6, steps=8)


@pytest.mark.slow
def test_many_long_random_lives_follow_the_model(template: Path) -> None:
    _run(template, examples=60, steps=25)
