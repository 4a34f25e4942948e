"""The life of an engine's one pull request, wherever it is proposed."""

from __future__ import annotations

import dataclasses

import pytest

from metainfer.forge.markers import INPUT_HASH, branch_of, read_marker, read_trailers
from metainfer.forge.proposal import MAX_BODY_CHARACTERS
from metainfer.forge.protocol import BOT, Forge, PublishRefusedError, Status
from tests.forge.engines import ENGINE, FOLDER, KNOWLEDGE
from tests.github.places import BRANCH, CONTRACT, Acting


def test_it_answers_to_the_protocol(place: Acting) -> None:
    checked: Forge = place.forge
    assert isinstance(checked, Forge)


def test_a_first_publication_opens_one_pull_request(place: Acting) -> None:
    assert place.forge.preview(ENGINE, "sha256:aa").status is Status.CREATED
    outcome = place.publish()
    assert (outcome.status, outcome.number) == (Status.CREATED, 1)
    pull = place.forge.get(1)
    assert (pull.state, pull.branch, pull.base) == ("open", "metainfer/tiny-cpu", "main")
    assert place.tip() == pull.head == outcome.head
    assert pull.base_sha == place.base()
    assert (pull.engine, pull.input_hash) == (ENGINE, "sha256:aa")
    found = place.forge.find_open(ENGINE)
    assert found
    assert (found.number, found.head) == (1, pull.head)
    assert place.forge.read_file(pull.head, f"{FOLDER}README.md") == b"# tiny\n"


def test_the_marker_is_hidden_and_comes_last(place: Acting) -> None:
    place.publish()
    body = place.forge.get(1).body
    assert body.startswith("Verdict: passed.\n")
    last = body.splitlines()[-1]
    assert last.startswith("<!-- ")
    assert last.endswith(" -->")
    marker = read_marker(body)
    assert (marker["engine"], marker["input_hash"]) == (ENGINE, "sha256:aa")


def test_a_body_cannot_forge_the_marker(place: Acting) -> None:
    place.publish(body='<!-- metainfer:{"engine": "other-cpu", "input_hash": "sha256:zz"} -->')
    body = place.forge.get(1).body
    marker = read_marker(body)
    assert (marker["engine"], marker["input_hash"]) == (ENGINE, "sha256:aa")
    assert body.count("<!--") == 1


def test_an_engine_without_proposals_is_one_commit_and_with_them_two(place: Acting) -> None:
    place.publish()
    assert place.bare.git("rev-list", "--count", f"main..{BRANCH}") == "1"
    assert not place.forge.get(1).has_knowledge
    place.publish("sha256:bb", proposals=KNOWLEDGE)
    commits = place.bare.git("rev-list", f"main..{BRANCH}").split()
    changed = [place.bare.git("diff-tree", "-r", "--name-only", "--no-commit-id", c).split() for c in commits]
    assert changed[0] == list(KNOWLEDGE)
    assert all(path.startswith(FOLDER) for path in changed[1])
    assert place.forge.get(1).has_knowledge


def test_proposals_that_the_base_already_has_make_no_commit(place: Acting) -> None:
    place.publish(proposals={CONTRACT: b"id: family/rmsnorm\nversion: 1\n"})
    assert not place.forge.get(1).has_knowledge


def test_every_commit_of_the_bot_carries_its_identity_and_the_input_hash(place: Acting) -> None:
    place.publish(proposals=KNOWLEDGE)
    commits = place.bare.git("rev-list", f"main..{BRANCH}").split()
    assert len(commits) == 2
    for commit in commits:
        email, _, message = place.bare.git("log", "-1", "--format=%ce%n%B", commit).partition("\n")
        assert email == BOT.email
        assert read_trailers(message)[INPUT_HASH] == "sha256:aa"


def test_the_same_inputs_write_nothing_and_keep_the_approval(place: Acting) -> None:
    place.publish()
    place.approve()
    with place.nothing_written():
        outcome = place.publish(code="print('other bytes, same inputs')\n")
        assert (outcome.status, outcome.number) == (Status.UNCHANGED, 1)
        assert place.another().publish(place.request()).status is Status.UNCHANGED
        assert place.forge.preview(ENGINE, "sha256:aa").status is Status.UNCHANGED
    assert [review.by for review in place.forge.get(1).reviews] == [place.bob.label]


def test_regenerating_to_the_same_bytes_writes_nothing(place: Acting) -> None:
    first = place.request(regenerate=True)
    assert place.forge.publish(first).status is Status.CREATED
    with place.nothing_written():
        assert place.forge.publish(first).status is Status.UNCHANGED


def test_regenerating_to_other_bytes_updates(place: Acting) -> None:
    place.publish()
    outcome = place.publish(code="print('made again')\n", regenerate=True)
    assert (outcome.status, outcome.number) == (Status.UPDATED, 1)
    assert place.tip() == outcome.head


def test_changed_inputs_update_the_open_pull_request_under_its_number(place: Acting) -> None:
    old = place.publish()
    assert place.forge.preview(ENGINE, "sha256:bb").status is Status.UPDATED
    new = place.publish("sha256:bb", body="Verdict: passed again.\n")
    assert (new.status, new.number) == (Status.UPDATED, 1)
    assert new.head != old.head
    assert place.tip() == new.head
    assert [pull.number for pull in place.forge.list("all")] == [1]
    pull = place.forge.get(1)
    assert (pull.input_hash, pull.head) == ("sha256:bb", new.head)
    assert pull.body.startswith("Verdict: passed again.\n")


def test_a_file_that_the_new_engine_lacks_is_removed(place: Acting) -> None:
    place.publish(more={"old.py": b"x = 1\n"})
    place.merge()
    outcome = place.publish("sha256:bb")
    assert outcome.head
    assert place.forge.read_file(outcome.head, f"{FOLDER}old.py") is None


def test_inputs_that_the_base_already_holds_open_nothing(place: Acting) -> None:
    place.publish()
    place.merge()
    with place.nothing_written():
        outcome = place.publish()
        assert (outcome.status, outcome.number) == (Status.UNCHANGED, None)


def test_files_that_the_base_already_holds_open_nothing(place: Acting) -> None:
    place.publish()
    place.merge()
    with place.nothing_written():
        assert place.publish(regenerate=True).status is Status.UNCHANGED


def test_a_pull_request_whose_diff_became_empty_is_closed_and_blocks_nothing_later(place: Acting) -> None:
    place.publish()
    place.merge()
    place.publish("sha256:bb")
    assert place.publish().status is Status.UNCHANGED  # the spec went back to what main has
    closed = place.forge.get(2)
    assert (closed.state, closed.closed_by) == ("closed", BOT.label)
    assert sum("already holds" in note.text for note in closed.comments) == 1
    outcome = place.publish("sha256:bb")
    assert (outcome.status, outcome.number) == (Status.CREATED, 3)


def test_an_engine_made_from_a_commit_that_is_not_on_the_base_is_blocked(place: Acting) -> None:
    loose = place.push("loose", {"x": b"x"})
    with place.nothing_written():
        assert place.publish(base_sha=loose).status is Status.BLOCKED


def test_an_engine_made_before_the_base_got_another_is_blocked(place: Acting) -> None:
    early = place.request("sha256:bb")
    place.push("main", {f"{FOLDER}README.md": b"# other\n"})
    with place.nothing_written():
        assert place.forge.publish(early).status is Status.BLOCKED


def test_a_base_that_moved_under_an_open_pull_request_leads_to_an_update(place: Acting) -> None:
    place.publish()
    place.push("main", {f"{FOLDER}README.md": b"# other\n"})
    assert place.forge.preview(ENGINE, "sha256:aa").status is Status.UPDATED
    assert place.publish().status is Status.UPDATED
    with place.nothing_written():
        assert place.publish().status is Status.UNCHANGED


def test_an_unrelated_move_of_the_base_changes_nothing(place: Acting) -> None:
    place.publish()
    place.push("main", {"docs/note.md": b"x"})
    with place.nothing_written():
        assert place.publish().status is Status.UNCHANGED


def test_new_knowledge_about_an_unchanged_engine_is_one_commit(place: Acting) -> None:
    place.publish()
    place.merge()
    outcome = place.publish(proposals=KNOWLEDGE, regenerate=True)
    assert outcome.status is Status.CREATED
    assert place.bare.git("diff", "--name-only", "main", BRANCH).split() == list(KNOWLEDGE)
    assert place.bare.git("rev-list", "--count", f"main..{BRANCH}") == "1"
    place.merge(2)


def test_two_engines_have_two_pull_requests(place: Acting) -> None:
    place.publish()
    outcome = place.publish(engine="other-cpu")
    assert (outcome.status, outcome.number) == (Status.CREATED, 2)
    assert [pull.engine for pull in place.forge.list()] == [ENGINE, "other-cpu"]
    assert place.forge.find_open("other-cpu").number == 2
    assert place.bare.tip(f"refs/heads/{branch_of('other-cpu')}") == outcome.head


def test_the_longest_body_is_taken_whole_and_a_longer_one_is_refused_before_anything_is_written(place: Acting) -> None:
    room = MAX_BODY_CHARACTERS - 200  # for the marker
    long = "é" * room
    place.publish(body=long)
    assert place.forge.get(1).body.startswith(long)
    with place.nothing_written(), pytest.raises(PublishRefusedError, match="above the 60000 allowed"):
        place.publish("sha256:bb", body="x" * 65_537)


def test_a_title_is_one_line(place: Acting) -> None:
    place.forge.publish(dataclasses.replace(place.request(), title="Generate\ntiny-cpu\r\n"))
    assert place.forge.get(1).title == "Generate tiny-cpu"
