"""Many at once, and pushes that land in between: one pull request, and nobody's commit is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from metainfer.errors import ConflictError
from metainfer.forge.markers import branch_of
from metainfer.forge.protocol import Forge, PublishOutcome, Status
from tests.forge.engines import ENGINE, FOLDER
from tests.github.places import BRANCH, Acting, together


def publishers(place: Acting, hashes: Sequence[str], **parts: object) -> list[PublishOutcome]:
    """One process of the bot for each of the hashes, all at once."""
    forges: list[Forge] = [place.another() for _ in hashes]
    wanted = [place.request(each, **parts) for each in hashes]
    outcomes = together([lambda f=f, w=w: f.publish(w) for f, w in zip(forges, wanted, strict=True)])  # type: ignore[misc]
    assert all(isinstance(outcome, PublishOutcome) for outcome in outcomes), outcomes
    return outcomes  # type: ignore[return-value]


@pytest.mark.parametrize("many", [2, 4])
def test_publishers_of_the_same_inputs_make_one_pull_request(place: Acting, many: int) -> None:
    outcomes = publishers(place, ["sha256:aa"] * many)
    assert {outcome.number for outcome in outcomes} == {1}
    assert [outcome.status for outcome in outcomes].count(Status.CREATED) == 1
    assert place.states() == ["open"]
    pull = place.forge.get(1)
    assert (pull.head, pull.input_hash) == (place.tip(), "sha256:aa")
    with place.nothing_written():
        assert place.publish().status is Status.UNCHANGED


def test_publishers_of_different_inputs_share_one_pull_request(place: Acting) -> None:
    hashes = [f"sha256:{n}" for n in range(3)]
    assert {outcome.number for outcome in publishers(place, hashes)} == {1}
    assert place.states() == ["open"]
    # Whoever was last to push may not be the last to describe it; the next run of any of them puts that right.
    settled = place.publish("sha256:0")
    pull = place.forge.get(1)
    assert (pull.head, pull.input_hash) == (place.tip(), "sha256:0")
    assert settled.number == 1


def test_publishers_of_an_update_keep_to_the_one_pull_request(place: Acting) -> None:
    place.publish()
    outcomes = publishers(place, ["sha256:bb"] * 3)
    assert {outcome.number for outcome in outcomes} == {1}
    assert place.states() == ["open"]
    pull = place.forge.get(1)
    assert (pull.head, pull.input_hash) == (place.tip(), "sha256:bb")


def test_publishers_of_different_engines_each_get_a_number(place: Acting) -> None:
    engines = [f"engine-{n}" for n in range(3)]
    forges = [place.another() for _ in engines]
    wanted = [place.request(engine=engine) for engine in engines]
    outcomes = together([lambda f=f, w=w: f.publish(w) for f, w in zip(forges, wanted, strict=True)])  # type: ignore[misc]
    assert sorted(outcome.number for outcome in outcomes) == [1, 2, 3]  # type: ignore[attr-defined]
    assert {pull.engine for pull in place.forge.list("all")} == set(engines)


def test_a_blocked_branch_is_spoken_of_once_by_many(place: Acting) -> None:
    place.publish()
    theirs = place.by_hand()
    outcomes = publishers(place, ["sha256:bb"] * 2)
    assert [outcome.status for outcome in outcomes] == [Status.BLOCKED] * 2
    assert place.tip() == theirs
    place.publish("sha256:bb")
    assert 1 <= sum(note.kind == "blocked" for note in place.forge.get(1).comments) <= 2


def test_no_comment_is_lost_when_many_write_at_once(place: Acting) -> None:
    place.publish()
    bob = place.person(place.bob)
    together([lambda n=n: bob.comment(1, place.bob, f"comment {n}") for n in range(3)])  # type: ignore[misc]
    assert sorted(note.text for note in place.forge.get(1).comments) == [f"comment {n}" for n in range(3)]


def test_an_update_that_races_with_a_merge_never_lets_an_unreviewed_head_in(place: Acting) -> None:
    head = place.publish().head
    place.approve()
    alice, bot, wanted = place.person(place.alice), place.another(), place.request("sha256:bb")

    def merge() -> None:
        with contextlib.suppress(ConflictError):
            alice.merge(1, place.alice)

    together([merge, lambda: bot.publish(wanted)])
    merged = place.forge.get(1)
    assert merged.state == "open" or place.bare.git("rev-parse", "main^2") == head


@pytest.mark.parametrize("regenerate", [False, True], ids=["", "regenerate"])
@pytest.mark.parametrize("late", [False, True], ids=["before the push", "within the push"])
@pytest.mark.parametrize("there", [False, True], ids=["new branch", "update"])
def test_a_push_that_lands_before_ours_is_never_overwritten(
    place: Acting, regenerate: bool, late: bool, there: bool
) -> None:
    if there:
        place.publish()
    wanted, theirs = place.request("sha256:bb", regenerate=regenerate), []
    work = {f"{FOLDER}x.md": b"by hand\n"}
    place.interrupt(lambda: theirs.append(place.push(branch_of(ENGINE), work)), late=late)
    outcome = place.forge.publish(wanted)
    assert len(theirs) == 1
    assert outcome.status is Status.BLOCKED
    assert place.tip() == theirs[0]


@pytest.mark.parametrize("late", [False, True], ids=["before the push", "within the push"])
def test_a_branch_that_is_deleted_before_our_push_is_made_again(place: Acting, late: bool) -> None:
    place.push(branch_of(ENGINE), {"x": b"x"})
    place.bare.set_ref(BRANCH, place.base())  # a branch that brings nothing, as a person's tool may leave it
    place.interrupt(lambda: place.bare.set_ref(BRANCH, None), late=late)
    outcome = place.publish()
    assert outcome.status is Status.CREATED
    assert place.tip() == outcome.head
