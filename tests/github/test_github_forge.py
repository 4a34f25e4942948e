"""What GitHub alone knows of: forks, deleted branches, bodies written over, tokens of workflow runs, long texts."""

from __future__ import annotations

import pytest

from metainfer.errors import InputError
from metainfer.forge.github.conversation import MAX_COMMENT_CHARACTERS, Conversation
from metainfer.forge.markers import branch_of, read_marker
from metainfer.forge.protocol import BOT, REGENERATE_LABEL, Identity, Status
from tests.forge.engines import ENGINE, FOLDER
from tests.github.places import BOT_LOGIN, BRANCH, Acting
from tests.github.stub import Stub

EVE = Identity("Eve", "eve@example.org", "@eve")


def test_the_same_inputs_cost_one_question_and_a_fetch(on_stub: Acting) -> None:
    on_stub.publish()
    before = len(on_stub.calls())
    assert on_stub.publish().status is Status.UNCHANGED
    asked = [str(call) for call in on_stub.calls()[before:]]
    assert [call for call in asked if "/api/" in call] == [f"GET /api/v3/repos/{on_stub.account.slug}/pulls"]
    assert all(call.endswith(("/info/refs", "/git-upload-pack")) for call in asked if "/api/" not in call)


def test_a_first_publication_writes_twice_and_an_update_too(on_stub: Acting) -> None:
    slug = on_stub.account.slug
    on_stub.publish()
    push = f"POST /{slug}.git/git-receive-pack"
    assert on_stub.writes() == [push, f"POST /api/v3/repos/{slug}/pulls"]
    on_stub.publish("sha256:bb")
    assert on_stub.writes()[2:] == [push, f"PATCH /api/v3/repos/{slug}/pulls/1"]


def test_the_marker_names_the_head_that_its_body_speaks_of(on_stub: Acting) -> None:
    head = on_stub.publish().head
    assert read_marker(on_stub.forge.get(1).body)["head"] == head
    new = on_stub.publish("sha256:bb").head
    assert read_marker(on_stub.forge.get(1).body)["head"] == new


def test_a_fork_with_our_branch_our_title_and_our_marker_is_not_ours(stub: Stub, on_stub: Acting) -> None:
    on_stub.publish()
    body = on_stub.forge.get(1).body
    on_stub.close()
    slug = on_stub.account.slug
    fork = stub.repo(f"eve/{slug.partition('/')[2]}", fork_of=slug)
    fork.bare.commit(branch_of(ENGINE), {"evil": b"x"}, start=fork.bare.tip("refs/heads/main"))
    on_stub.sign_in("eve", stub.token("eve"))
    repo = on_stub.person(EVE).connection.repo
    number = repo.create_pull(base="main", head=f"eve:{branch_of(ENGINE)}", title="Generate tiny-cpu", body=body).number
    assert on_stub.forge.find_open(ENGINE) is None
    assert number not in [pull.number for pull in on_stub.forge.list("all")]
    assert on_stub.publish("sha256:bb").status is Status.CREATED
    blockers = list(on_stub.forge.merge_blockers(number))
    assert blockers


def test_a_pull_request_opened_by_hand_from_the_bots_branch_is_taken_back_and_not_doubled(on_stub: Acting) -> None:
    on_stub.publish()
    on_stub.close()
    assert on_stub.open_by_hand(on_stub.alice, branch_of(ENGINE), "By hand") == 2
    outcome = on_stub.publish("sha256:bb")
    assert (outcome.status, outcome.number) == (Status.UPDATED, 2)
    pull = on_stub.forge.get(2)
    assert (pull.engine, pull.title) == (ENGINE, "Generate tiny-cpu")


def test_a_pull_request_that_another_run_opened_just_before_ours_is_found(on_stub: Acting) -> None:
    """GitHub says 422 to the second: looked for again, and no failure."""
    rival, wanted, theirs = on_stub.another(), on_stub.request(), []
    path = f"{on_stub.account.slug}/pulls$"
    on_stub.faults.before("POST", path, lambda: theirs.append(rival.publish(wanted)))
    outcome = on_stub.forge.publish(wanted)
    assert [(each.status, each.number) for each in theirs] == [(Status.CREATED, 1)]
    assert (outcome.status, outcome.number, outcome.head) == (Status.UPDATED, 1, on_stub.tip())
    assert on_stub.states() == ["open"]
    assert on_stub.writes().count(f"POST /api/v3/repos/{on_stub.account.slug}/pulls") == 2


@pytest.mark.parametrize("body", ["", "All gone.", '<!-- metainfer:{"engine": "tiny-cpu"} -->'])
def test_a_body_that_was_written_over_is_written_again(on_stub: Acting, body: str) -> None:
    head = on_stub.publish().head
    alice = on_stub.person(on_stub.alice).connection
    alice.request("PATCH", f"/repos/{on_stub.account.slug}/pulls/1", {"body": body})
    outcome = on_stub.publish()
    assert (outcome.status, outcome.number, outcome.head) == (Status.UPDATED, 1, head)
    assert on_stub.forge.get(1).input_hash == "sha256:aa"
    with on_stub.nothing_written():
        assert on_stub.publish().status is Status.UNCHANGED


def test_line_breaks_that_github_changed_are_no_change(on_stub: Acting) -> None:
    on_stub.publish()
    body = on_stub.forge.get(1).body.replace("\n", "\r\n")
    alice = on_stub.person(on_stub.alice).connection
    alice.request("PATCH", f"/repos/{on_stub.account.slug}/pulls/1", {"body": body})
    with on_stub.nothing_written():
        assert on_stub.publish().status is Status.UNCHANGED


def test_a_branch_that_somebody_deleted_closes_its_pull_request_which_stays_closed(on_stub: Acting) -> None:
    on_stub.publish()
    on_stub.bare.set_ref(BRANCH, None)
    assert on_stub.publish().status is Status.CLOSED
    assert on_stub.tip() is None
    assert on_stub.publish("sha256:bb").status is Status.CREATED


def test_the_token_of_a_workflow_run_proposes_in_the_name_of_actions(stub: Stub, on_stub: Acting) -> None:
    rights = {"contents": "write", "pull_requests": "write", "issues": "write"}
    on_stub.sign_in(BOT_LOGIN, stub.actions_token(on_stub.account.slug, **rights))
    assert on_stub.publish().status is Status.CREATED
    on_stub.by_hand()
    for _ in range(2):
        assert on_stub.publish("sha256:bb").status is Status.BLOCKED
    assert [note.by for note in on_stub.forge.get(1).comments] == ["@github-actions[bot]"]


def test_who_may_only_triage_cannot_have_peoples_commits_replaced(stub: Stub, on_stub: Acting) -> None:
    repo = stub.world.repo(on_stub.account.slug)
    assert repo
    repo.roles["bob"] = "triage"
    on_stub.publish()
    theirs = on_stub.by_hand()
    on_stub.person(on_stub.bob).label(1, on_stub.bob, REGENERATE_LABEL)
    assert on_stub.publish("sha256:bb").status is Status.BLOCKED
    on_stub.person(on_stub.alice).label(1, on_stub.alice, REGENERATE_LABEL, remove=True)
    on_stub.person(on_stub.alice).label(1, on_stub.alice, REGENERATE_LABEL)
    assert on_stub.publish("sha256:bb").status is Status.UPDATED
    assert on_stub.tip() != theirs


def test_a_comment_of_ours_that_is_too_long_is_cut_and_found_again(on_stub: Acting) -> None:
    on_stub.publish()
    said = Conversation(on_stub.forge.connection)
    said.say(1, "report", "x" * 70_000)
    (note,) = said.remarks(1)
    assert len(note.text) <= MAX_COMMENT_CHARACTERS
    assert note.key == "report"
    with on_stub.nothing_written():
        said.say(1, "report", "x" * 70_000)


def test_another_accounts_comment_with_our_key_is_not_ours(on_stub: Acting) -> None:
    on_stub.publish()
    said = Conversation(on_stub.forge.connection)
    said.say(1, "report", "ours")
    forged = said.remarks(1)[0].text
    on_stub.person(on_stub.bob).comment(1, on_stub.bob, forged)
    assert [note.key for note in said.remarks(1)] == ["report", ""]


def test_what_is_no_text_is_refused_before_it_is_sent(on_stub: Acting) -> None:
    on_stub.publish()
    bob = on_stub.person(on_stub.bob)
    for act in (lambda: bob.comment(1, on_stub.bob, "caf\udce9"), lambda: bob.close(1, on_stub.bob, "caf\udce9")):
        with on_stub.nothing_written(), pytest.raises(InputError, match="not text in UTF-8"):
            act()


def test_a_tag_of_a_commit_that_is_not_there_is_refused(on_stub: Acting) -> None:
    with on_stub.nothing_written(), pytest.raises(InputError, match="names no commit"):
        on_stub.forge.create_tag("tiny-cpu/v1.0.0", "0" * 40, "x\n", BOT)


def test_an_engine_on_the_base_whose_pull_request_was_closed_at_merge_by_hand_is_known(on_stub: Acting) -> None:
    """Squashed by hand: the base holds the files under another commit."""
    head = on_stub.publish().head
    files = {path: on_stub.bare.file(head, path) for path in on_stub.forge.read_tree(head, FOLDER)}
    on_stub.push("main", files)
    assert on_stub.publish().status is Status.UNCHANGED
    assert on_stub.states() == ["closed"]
    assert "already holds" in on_stub.forge.get(1).comments[-1].text
