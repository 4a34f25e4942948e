"""An engine has one branch: what waits there for main is not pushed over by one for another branch."""

from __future__ import annotations

from dataclasses import replace

from metainfer.forge.protocol import PublishOutcome, Status
from tests.forge.engines import ENGINE
from tests.github.places import Acting


def stack(place: Acting, on: str, input_hash: str) -> PublishOutcome:
    head = place.bare.tip(f"refs/heads/{on}") or place.push(on, {"specs/tiny-cpu.yaml": on.encode()})
    outcome: PublishOutcome = place.forge.publish(replace(place.request(input_hash, base_sha=head), base=on))
    return outcome


def test_what_waits_for_main_is_not_pushed_over_for_another_branch(on_stub: Acting) -> None:
    first = on_stub.publish("sha256:aa")
    outcome = stack(on_stub, "spec", "sha256:bb")
    assert outcome.status is Status.BLOCKED
    assert "proposed to main in pull request #1" in outcome.reason
    assert (on_stub.tip(), on_stub.states()) == (first.head, ["open"])
    forge = on_stub.another()
    assert forge.preview(ENGINE, "sha256:bb", "spec").status is Status.BLOCKED
    with on_stub.nothing_written():
        assert forge.say_blocked(ENGINE, "sha256:bb", "spec").status is Status.BLOCKED


def test_one_stacked_engine_at_a_time_and_it_is_kept_current(on_stub: Acting) -> None:
    assert stack(on_stub, "spec", "sha256:aa").status is Status.CREATED
    assert stack(on_stub, "other", "sha256:bb").status is Status.BLOCKED
    assert stack(on_stub, "spec", "sha256:cc").status is Status.UPDATED


def test_what_is_stacked_does_not_keep_mains_engine_back(on_stub: Acting) -> None:
    stack(on_stub, "spec", "sha256:aa")
    assert on_stub.publish("sha256:bb").status is Status.CREATED
    assert on_stub.tip() == on_stub.forge.find_open(ENGINE).head


def test_a_persons_commit_on_what_is_stacked_is_left_alone(on_stub: Acting) -> None:
    stack(on_stub, "spec", "sha256:aa")
    mine = on_stub.by_hand()
    assert on_stub.publish("sha256:bb").status is Status.BLOCKED
    assert on_stub.tip() == mine
