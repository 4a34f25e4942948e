"""What people do stands: their commits, their refusals, their own pull requests, their words."""

from __future__ import annotations

import pytest

from metainfer.errors import ConflictError, InputError
from metainfer.forge.markers import branch_of
from metainfer.forge.protocol import BOT, REGENERATE_LABEL, NoSuchPullError, Status
from tests.forge.engines import ENGINE, FOLDER
from tests.github.bare import Who
from tests.github.places import BRANCH, Acting


def test_a_persons_commit_stops_the_bot_and_is_said_once(place: Acting) -> None:
    place.publish()
    theirs = place.by_hand()
    assert place.forge.preview(ENGINE, "sha256:bb").status is Status.BLOCKED
    outcomes = [place.publish(f"sha256:{n}") for n in range(3)]
    outcomes.append(place.another().publish(place.request("sha256:3")))
    assert [outcome.status for outcome in outcomes] == [Status.BLOCKED] * 4
    assert "did not make" in outcomes[0].reason
    assert place.tip() == theirs
    comments = place.forge.get(1).comments
    assert [note.kind for note in comments] == ["blocked"]
    assert "--regenerate" in comments[0].text


def test_the_same_inputs_are_blocked_too(place: Acting) -> None:
    place.publish()
    theirs = place.by_hand()
    assert place.publish().status is Status.BLOCKED
    assert place.tip() == theirs


def test_an_amended_commit_of_the_bot_is_a_persons(place: Acting) -> None:
    head = place.publish().head
    message = place.bare.git("log", "-1", "--format=%B", head)
    alice, bot = Who("Alice Example", "alice@example.org"), Who(BOT.name, BOT.email)
    amended = place.bare.commit_tree(f"{head}^{{tree}}", [place.base()], message, bot, alice)
    place.bare.set_ref(BRANCH, amended)
    assert place.publish("sha256:bb").status is Status.BLOCKED
    assert place.tip() == amended


def test_regenerate_replaces_a_persons_commit_and_says_where_it_is(place: Acting) -> None:
    place.publish()
    theirs = place.by_hand()
    place.publish("sha256:bb")
    outcome = place.publish("sha256:bb", regenerate=True)
    assert (outcome.status, outcome.number) == (Status.UPDATED, 1)
    assert place.tip() == outcome.head != theirs
    assert sum(theirs in note.text and "on request" in note.text for note in place.forge.get(1).comments) == 1
    assert place.forge.read_file(theirs, f"{FOLDER}README.md") == b"# by hand\n"
    with place.nothing_written():
        assert place.publish("sha256:bb").status is Status.UNCHANGED


def test_a_branch_made_by_a_person_is_not_taken_over(place: Acting) -> None:
    theirs = place.push(branch_of(ENGINE), {"note.txt": b"x"})
    with place.nothing_written():
        outcome = place.publish()
        assert (outcome.status, outcome.number) == (Status.BLOCKED, None)
    assert place.tip() == theirs
    assert place.states() == []


def test_a_pull_request_closed_by_a_person_stays_closed_until_the_inputs_change(place: Acting) -> None:
    place.publish()
    place.close(1, "not now")
    pull = place.forge.get(1)
    assert pull.state == "closed"
    assert [note.text for note in pull.comments] == ["not now"]
    with place.nothing_written():
        for _ in range(2):
            outcome = place.publish()
            assert (outcome.status, outcome.number) == (Status.CLOSED, 1)
        assert place.forge.preview(ENGINE, "sha256:aa").status is Status.CLOSED
    outcome = place.publish("sha256:bb")
    assert (outcome.status, outcome.number) == (Status.CREATED, 2)
    assert place.forge.get(2).body.startswith("Follows #1, which ")
    assert place.forge.get(1).state == "closed"


def test_who_closed_a_pull_request_is_told(place: Acting) -> None:
    place.publish()
    place.close()
    assert place.forge.get(1).closed_by == place.bob.label
    outcome = place.publish()
    assert outcome.reason.startswith(f"{place.bob.label} closed pull request #1")
    place.publish("sha256:bb")
    assert place.forge.get(2).body.startswith("Follows #1, which ")
    assert "bob" in place.forge.get(2).body.splitlines()[0]


def test_regenerate_opens_what_was_closed_anew(place: Acting) -> None:
    place.publish()
    place.close()
    outcome = place.publish(regenerate=True)
    assert (outcome.status, outcome.number) == (Status.CREATED, 2)


def test_a_refusal_is_forgotten_after_a_merge(place: Acting) -> None:
    place.publish()
    place.close()
    place.publish("sha256:bb")
    place.merge(2)
    assert place.publish().status is Status.CREATED


def test_pull_requests_of_people_with_our_title_are_not_ours(place: Acting) -> None:
    title = place.request().title
    place.push("by-alice", {"note.txt": b"x"})
    assert place.open_by_hand(place.alice, "by-alice", title) == 1
    assert place.forge.find_open(ENGINE) is None
    outcome = place.publish()
    assert (outcome.status, outcome.number) == (Status.CREATED, 2)
    with place.nothing_written():
        outcome = place.publish()
        assert (outcome.status, outcome.number) == (Status.UNCHANGED, 2)


def test_a_closed_pull_request_of_a_person_from_our_branch_is_no_refusal(place: Acting) -> None:
    place.push(branch_of(ENGINE), {"note.txt": b"x"})
    assert place.open_by_hand(place.alice, branch_of(ENGINE), place.request().title) == 1
    place.close()
    place.bare.set_ref(BRANCH, None)
    outcome = place.publish()
    assert (outcome.status, outcome.number) == (Status.CREATED, 2)
    assert place.forge.find_open(ENGINE).number == 2


def test_one_engines_closed_pull_request_is_not_anothers(place: Acting) -> None:
    place.publish(engine="other-cpu")
    place.close()
    assert place.publish().status is Status.CREATED


def test_closing_twice_is_closing_once(place: Acting) -> None:
    place.publish()
    place.close()
    with place.nothing_written():
        assert place.close().state == "closed"


def test_comments_are_kept_in_order_and_sign_who_wrote_them(place: Acting) -> None:
    place.publish()
    place.person(place.alice).comment(1, place.alice, "Looks fine.\n\n```\ncode & <tags>\n```")
    place.person(place.bob).comment(1, place.bob, "To me too.")
    notes = place.forge.get(1).comments
    assert [note.by for note in notes] == [place.alice.label, place.bob.label]
    assert notes[0].text == "Looks fine.\n\n```\ncode & <tags>\n```"
    assert {note.kind for note in notes} == {"note"}


def test_the_same_words_are_one_comment_until_somebody_else_speaks(place: Acting) -> None:
    place.publish()
    for who in (place.bob, place.bob, place.alice, place.bob):
        place.person(who).comment(1, who, "Any news?")
    assert [note.by for note in place.forge.get(1).comments] == [w.label for w in (place.bob, place.alice, place.bob)]


def test_nothing_is_no_comment(place: Acting) -> None:
    place.publish()
    with place.nothing_written(), pytest.raises(InputError, match="is empty"):
        place.person(place.bob).comment(1, place.bob, " \n")


def test_a_label_stays_through_updates_and_until_it_is_taken_off(place: Acting) -> None:
    place.publish()
    bob = place.person(place.bob)
    assert bob.label(1, place.bob, "metainfer/stop").labels == ("metainfer/stop",)
    place.publish("sha256:bb")
    assert place.forge.get(1).labels == ("metainfer/stop",)
    bob.label(1, place.bob, "area/cpu")
    assert place.forge.find_open(ENGINE).labels == ("metainfer/stop", "area/cpu")
    assert bob.label(1, place.bob, "metainfer/stop", remove=True).labels == ("area/cpu",)


def test_a_label_twice_is_a_label_once_and_writes_nothing(place: Acting) -> None:
    place.publish()
    bob = place.person(place.bob)
    bob.label(1, place.bob, "metainfer/stop")
    with place.nothing_written():
        assert bob.label(1, place.bob, "metainfer/stop").labels == ("metainfer/stop",)
        bob.label(1, place.bob, "absent", remove=True)


def test_the_label_to_regenerate_unblocks_once(place: Acting) -> None:
    place.publish()
    theirs = place.by_hand()
    assert place.publish("sha256:bb").status is Status.BLOCKED
    place.person(place.bob).label(1, place.bob, REGENERATE_LABEL)
    assert place.forge.preview(ENGINE, "sha256:bb").status is Status.UPDATED
    outcome = place.publish("sha256:bb")
    assert (outcome.status, outcome.number) == (Status.UPDATED, 1)
    assert place.tip() == outcome.head != theirs
    pull = place.forge.get(1)
    assert pull.labels == ()
    assert sum(theirs in note.text for note in pull.comments) == 1
    with place.nothing_written():
        assert place.publish("sha256:bb").status is Status.UNCHANGED
    place.by_hand()
    assert place.publish("sha256:bb").status is Status.BLOCKED


def test_the_label_is_taken_off_although_the_same_came_out(place: Acting) -> None:
    head = place.publish().head
    place.person(place.bob).label(1, place.bob, REGENERATE_LABEL)
    place.person(place.bob).label(1, place.bob, "area/cpu")
    assert place.forge.preview(ENGINE, "sha256:aa").status is Status.UPDATED
    outcome = place.publish()
    assert (outcome.status, outcome.head) == (Status.UNCHANGED, head)
    assert place.forge.get(1).labels == ("area/cpu",)
    with place.nothing_written():
        assert place.publish().status is Status.UNCHANGED


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 51, "caf\u00e9", "a\nb", "@a"])
def test_what_is_no_label_is_refused(place: Acting, name: str) -> None:
    place.publish()
    with place.nothing_written(), pytest.raises(InputError, match="is no label"):
        place.forge.label(1, place.bob, name)


def test_what_is_not_there_is_said_so(place: Acting) -> None:
    forge, bob = place.forge, place.bob
    for act in (
        lambda: forge.get(7),
        lambda: forge.diff(7),
        lambda: forge.comment(7, bob, "text"),
        lambda: forge.label(7, bob, "area/cpu"),
        lambda: forge.approve(7, bob),
        lambda: forge.close(7, bob),
        lambda: forge.merge_blockers(7),
        lambda: forge.merge(7, bob),
    ):
        with place.nothing_written(), pytest.raises(NoSuchPullError, match="#7"):
            act()


def test_what_is_merged_is_not_closed(place: Acting) -> None:
    place.publish()
    place.merge()
    with place.nothing_written(), pytest.raises(ConflictError, match="is merged"):
        place.close()
