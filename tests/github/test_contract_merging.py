"""What a merge demands, and what it leaves behind, wherever it is made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metainfer.errors import ConflictError
from metainfer.forge.protocol import MergeRefusedError, Status
from tests.forge.engines import ENGINE, FOLDER, KNOWLEDGE
from tests.github.bare import SOMEBODY
from tests.github.places import CONTRACT, Acting


def refusal(place: Acting, number: int = 1) -> str:
    alice = place.person(place.alice)
    with place.nothing_written():
        with pytest.raises(MergeRefusedError) as caught:
            alice.merge(number, place.alice)
        assert list(alice.merge_blockers(number)) == list(caught.value.reasons)
    return str(caught.value)


def test_an_approved_head_becomes_the_bases_engine(place: Acting) -> None:
    base = place.base()
    head = place.publish().head
    place.approve()
    alice = place.person(place.alice)
    assert list(alice.merge_blockers(1)) == []
    outcome = alice.merge(1, place.alice, expected_head=head)
    assert (outcome.number, outcome.base) == (1, "main")
    assert place.base() == outcome.commit
    assert place.bare.git("log", "-1", "--format=%P", "main").split() == [base, head]
    assert place.bare.git("rev-parse", f"main:{FOLDER}") == place.bare.git("rev-parse", f"{head}:{FOLDER}")
    assert place.bare.git("log", "-1", "--format=%s", "main") == "Merge pull request #1: Generate tiny-cpu"
    pull = place.forge.get(1)
    assert (pull.state, pull.merge_commit, pull.closed_by) == ("merged", outcome.commit, None)
    assert [pull.number for pull in place.forge.list("merged")] == [1]
    assert place.forge.find_open(ENGINE) is None


def test_merging_twice_is_merging_once(place: Acting) -> None:
    place.publish()
    first = place.merge()
    with place.nothing_written():
        assert place.person(place.alice).merge(1, place.alice).commit == first


def test_nobody_merges_what_nobody_approved(place: Acting) -> None:
    place.publish()
    assert "nobody has approved head" in refusal(place)


def test_approving_twice_is_approving_once(place: Acting) -> None:
    head = place.publish().head
    place.approve(head=head[:12])
    with place.nothing_written():
        place.approve()
    assert [(review.by, review.head) for review in place.forge.get(1).reviews] == [(place.bob.label, head)]


def test_an_approval_does_not_carry_over_to_a_new_head(place: Acting) -> None:
    place.publish()
    place.approve()
    place.publish("sha256:bb")
    assert "the reviewed head is not the one to be merged" in refusal(place)


def test_a_pull_request_can_be_merged_after_an_update(place: Acting) -> None:
    place.publish()
    head = place.publish("sha256:bb").head
    place.merge()
    assert place.bare.git("rev-parse", "main^2") == head


def test_a_head_that_is_not_the_expected_one_is_neither_approved_nor_merged(place: Acting) -> None:
    old = place.publish().head
    place.publish("sha256:bb")
    with place.nothing_written(), pytest.raises(ConflictError, match="has moved on"):
        place.approve(head=old)
    place.approve()
    with place.nothing_written(), pytest.raises(ConflictError, match="has moved on"):
        place.person(place.alice).merge(1, place.alice, expected_head=old)


@pytest.mark.parametrize(
    ("verdict", "said"),
    [("failed", "gate numerics: failed"), ("error", "gate numerics: error"), ("absent", "gate numerics has no report")],
)
def test_a_gate_that_is_red_or_missing_stops_the_merge(place: Acting, verdict: str, said: str) -> None:
    place.publish(verdicts={"numerics": verdict})
    place.approve()
    assert said in refusal(place)


def test_a_persons_commit_on_the_branch_stops_the_merge(place: Acting) -> None:
    place.publish()
    place.approve()
    place.by_hand()
    assert refusal(place)
    place.approve(1, place.alice)
    assert refusal(place)


def test_knowledge_needs_an_owner_of_the_knowledge_base(place: Acting) -> None:
    place.publish(proposals=KNOWLEDGE)
    place.approve(1, place.bob)
    assert f"a change of knowledge needs the approval of {place.alice.label}" in refusal(place)
    place.approve(1, place.alice)
    place.person(place.bob).merge(1, place.bob)
    assert place.bare.file("main", CONTRACT) == KNOWLEDGE[CONTRACT]


def test_an_owners_approval_of_an_older_head_is_none(place: Acting) -> None:
    place.publish(proposals=KNOWLEDGE)
    place.approve(1, place.alice)
    place.publish("sha256:bb", proposals=KNOWLEDGE)
    place.approve(1, place.bob)
    assert f"needs the approval of {place.alice.label}" in refusal(place)


def test_a_base_that_moved_elsewhere_is_merged_with(place: Acting) -> None:
    place.publish(proposals=KNOWLEDGE)
    place.push("main", {"docs/new.md": b"new\n", "ckb/general/x.yaml": b"x: 1\n"})
    place.merge()
    for path in ("docs/new.md", "ckb/general/x.yaml", CONTRACT, f"{FOLDER}README.md"):
        assert place.bare.file("main", path) is not None


@pytest.mark.parametrize("path", [f"{FOLDER}README.md", CONTRACT])
def test_a_base_that_moved_in_the_same_place_stops_the_merge(place: Acting, path: str) -> None:
    place.publish(proposals=KNOWLEDGE)
    place.push("main", {path: b"somebody was faster\n"})
    place.approve(1, place.alice)
    assert "changed on the base since this was" in refusal(place)


def test_two_engines_merge_one_after_the_other(place: Acting) -> None:
    place.publish()
    place.publish(engine="other-cpu")
    for number in (1, 2):
        place.merge(number)
    assert place.bare.file("main", "engines/other-cpu/README.md")
    assert place.bare.file("main", f"{FOLDER}README.md")


@pytest.mark.parametrize("act", [Acting.close, Acting.merge])
def test_what_is_closed_or_merged_is_not_approved_any_more(place: Acting, act: Callable[[Acting], object]) -> None:
    place.publish()
    act(place)
    with place.nothing_written(), pytest.raises(ConflictError):
        place.approve(1, place.alice)
    if act is Acting.close:
        assert "it is closed" in refusal(place)


def test_a_merge_with_git_alone_is_noticed(place: Acting) -> None:
    head = place.publish().head
    merge = place.bare.commit_tree(f"{head}^{{tree}}", [place.base(), head], "Merge by hand\n", SOMEBODY)
    place.bare.set_ref("refs/heads/main", merge)
    assert place.forge.get(1).state == "merged"
    assert place.forge.find_open(ENGINE) is None
    assert place.publish("sha256:bb").status is Status.CREATED
    assert place.states() == ["merged", "open"]
