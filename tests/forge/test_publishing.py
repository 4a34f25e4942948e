"""The life of an engine's one pull request in the local forge."""

from __future__ import annotations

import itertools

import pytest

from metainfer.errors import InputError
from metainfer.forge.local import LocalForge
from metainfer.forge.markers import INPUT_HASH, branch_of, read_marker, read_trailers
from metainfer.forge.plumbing import RefUpdate
from metainfer.forge.protocol import BOT, Forge, Status
from tests.forge.engines import ALICE, BOB, ENGINE, FOLDER, KNOWLEDGE, commit_on, refs, request

BRANCH = f"refs/heads/{branch_of(ENGINE)}"


def test_the_local_forge_answers_to_the_protocol(forge: LocalForge) -> None:
    checked: Forge = forge
    assert isinstance(checked, Forge)


def test_a_first_publication_opens_one_pull_request(forge: LocalForge) -> None:
    outcome = forge.publish(request(forge))
    assert (outcome.status, outcome.number) == (Status.CREATED, 1)
    pull = forge.get(1)
    assert (pull.state, pull.branch, pull.head) == ("open", "metainfer/tiny-cpu", outcome.head)
    assert forge.repo.commit_at(BRANCH) == pull.head
    assert read_marker(pull.body) == {"engine": ENGINE, "input_hash": "sha256:aa"}
    assert forge.find_open(ENGINE) == pull
    assert forge.read_file(pull.head, f"{FOLDER}README.md") == b"# tiny\n"
    assert "+# tiny" in forge.diff(1)


def test_an_engine_without_proposals_is_one_commit_and_with_them_two(forge: LocalForge) -> None:
    base = forge.base_sha()
    forge.publish(request(forge))
    assert forge.repo.read("rev-list", "--count", f"{base}..{BRANCH}").strip() == b"1"
    assert not forge.get(1).has_knowledge
    forge.publish(request(forge, "sha256:bb", proposals=KNOWLEDGE))
    commits = forge.repo.read("rev-list", f"{base}..{BRANCH}").decode().split()
    changed = [forge.repo.read("diff-tree", "-r", "--name-only", "--no-commit-id", c).decode().split() for c in commits]
    assert changed[0] == list(KNOWLEDGE)
    assert all(path.startswith(FOLDER) for path in changed[1])
    assert forge.get(1).has_knowledge


def test_proposals_that_the_base_already_has_make_no_commit(forge: LocalForge) -> None:
    known = {"ckb/family/rmsnorm/contract.yaml": b"id: family/rmsnorm\nversion: 1\n"}
    forge.publish(request(forge, proposals=known))
    assert not forge.get(1).has_knowledge


def test_every_commit_of_the_bot_carries_its_identity_and_the_input_hash(forge: LocalForge) -> None:
    forge.publish(request(forge, proposals=KNOWLEDGE))
    for commit in forge.repo.read("rev-list", f"main..{BRANCH}").decode().split():
        email, _, message = forge.repo.read("log", "-1", "--format=%ce%n%B", commit).decode().partition("\n")
        assert email == BOT.email
        assert read_trailers(message)[INPUT_HASH] == "sha256:aa"


def test_the_same_inputs_push_nothing_and_keep_the_approval(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.approve(1, BOB)
    before = refs(forge)
    outcome = forge.publish(request(forge, code="print('other bytes, same inputs')\n"))
    assert (outcome.status, outcome.number) == (Status.UNCHANGED, 1)
    assert refs(forge) == before
    assert forge.preview(ENGINE, "sha256:aa").status is Status.UNCHANGED


def test_regenerating_to_the_same_bytes_pushes_nothing(forge: LocalForge) -> None:
    first = request(forge, regenerate=True)
    forge.publish(first)
    before = refs(forge)
    assert forge.publish(first).status is Status.UNCHANGED
    assert refs(forge) == before


def test_changed_inputs_update_the_open_pull_request(forge: LocalForge) -> None:
    old = forge.publish(request(forge))
    new = forge.publish(request(forge, "sha256:bb"))
    assert (new.status, new.number) == (Status.UPDATED, 1)
    assert new.head != old.head
    assert [pull.number for pull in forge.list("all")] == [1]
    assert forge.get(1).input_hash == "sha256:bb"


def test_a_file_that_the_new_engine_lacks_is_removed(forge: LocalForge) -> None:
    forge.publish(request(forge, more={"old.py": b"x = 1\n"}))
    forge.approve(1, ALICE)
    forge.merge(1, ALICE)
    outcome = forge.publish(request(forge, "sha256:bb"))
    assert outcome.head
    assert forge.read_file(outcome.head, f"{FOLDER}old.py") is None


def test_inputs_that_the_base_already_holds_open_nothing(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.approve(1, ALICE)
    forge.merge(1, ALICE)
    before = refs(forge)
    outcome = forge.publish(request(forge))
    assert (outcome.status, outcome.number) == (Status.UNCHANGED, None)
    assert refs(forge) == before


def test_a_pull_request_that_lost_its_purpose_is_closed_and_blocks_nothing_later(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.approve(1, ALICE)
    forge.merge(1, ALICE)
    forge.publish(request(forge, "sha256:bb"))
    assert forge.publish(request(forge)).status is Status.UNCHANGED  # the spec went back to what main has
    assert (forge.get(2).state, forge.get(2).closed_by) == ("closed", BOT.label)
    assert forge.publish(request(forge, "sha256:bb")).status is Status.CREATED


def test_a_persons_commit_stops_the_bot_and_is_said_once(forge: LocalForge) -> None:
    forge.publish(request(forge))
    theirs = commit_on(forge, branch_of(ENGINE), {f"{FOLDER}README.md": b"# by hand\n"})
    outcomes = [forge.publish(request(forge, f"sha256:{n}")) for n in range(3)]
    assert [outcome.status for outcome in outcomes] == [Status.BLOCKED] * 3
    assert forge.repo.commit_at(BRANCH) == theirs
    comments = forge.get(1).comments
    assert len(comments) == 1
    assert "--regenerate" in comments[0].text


def test_an_amended_commit_of_the_bot_is_a_persons(forge: LocalForge) -> None:
    outcome = forge.publish(request(forge))
    assert outcome.head
    message = forge.repo.read("log", "-1", "--format=%B", outcome.head).decode()
    amended = forge.repo.write_commit(f"{outcome.head}^{{tree}}", [forge.base_sha()], message, BOT, ALICE)
    forge.repo.move_refs([RefUpdate(BRANCH, amended, outcome.head)], "push --force")
    assert forge.publish(request(forge, "sha256:bb")).status is Status.BLOCKED


def test_regenerate_replaces_a_persons_commit_but_keeps_it_reachable(forge: LocalForge) -> None:
    forge.publish(request(forge))
    theirs = commit_on(forge, branch_of(ENGINE), {f"{FOLDER}README.md": b"# by hand\n"})
    assert forge.publish(request(forge, "sha256:bb", regenerate=True)).status is Status.UPDATED
    assert forge.repo.is_ancestor(theirs, "refs/metainfer/pulls/1")
    assert theirs in forge.get(1).comments[-1].text


def test_a_branch_made_by_a_person_is_not_taken_over(forge: LocalForge) -> None:
    theirs = commit_on(forge, "main", {"note.txt": b"x"})
    forge.repo.move_refs([RefUpdate(BRANCH, theirs, None)], "push")
    forge.repo.move_refs([RefUpdate("refs/heads/main", forge.repo.commit_at(f"{theirs}^"), theirs)], "back")
    outcome = forge.publish(request(forge))
    assert (outcome.status, outcome.number) == (Status.BLOCKED, None)
    assert forge.list("all") == []


def test_a_pull_request_closed_by_a_person_stays_closed_until_the_inputs_change(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.close(1, BOB, "not now")
    before = refs(forge)
    for _ in range(2):
        outcome = forge.publish(request(forge))
        assert (outcome.status, outcome.number) == (Status.CLOSED, 1)
    assert refs(forge) == before
    outcome = forge.publish(request(forge, "sha256:bb"))
    assert (outcome.status, outcome.number) == (Status.CREATED, 2)
    assert forge.get(2).follows == 1
    assert forge.get(2).body.startswith("Follows #1")


def test_a_refusal_is_forgotten_after_a_merge(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.close(1, BOB)
    forge.publish(request(forge, "sha256:bb"))
    forge.approve(2, ALICE)
    forge.merge(2, ALICE)
    assert forge.publish(request(forge)).status is Status.CREATED


def test_other_engines_and_pull_requests_of_people_do_not_count(forge: LocalForge) -> None:
    forge.publish(request(forge, engine="other-cpu"))
    stored = forge.store.get(1)
    assert stored
    # The same branch and base, open, but without the bot's marker: somebody else's pull request.
    human = stored.pull.model_copy(update={"number": 2, "engine": ENGINE, "branch": branch_of(ENGINE), "body": "Mine."})
    assert forge.repo.move_refs([forge.store.change(human, None, "opened", BOB)], "open")
    outcome = forge.publish(request(forge))
    assert (outcome.status, outcome.number) == (Status.CREATED, 3)


def test_a_body_cannot_forge_the_marker(forge: LocalForge) -> None:
    forged = '<!-- metainfer:{"engine": "other-cpu", "input_hash": "sha256:zz"} -->'
    forge.publish(request(forge, body=forged))
    body = forge.get(1).body
    assert read_marker(body) == {"engine": ENGINE, "input_hash": "sha256:aa"}
    assert body.count("<!--") == 1


def test_an_engine_made_from_a_commit_that_is_not_on_the_base_is_blocked(forge: LocalForge) -> None:
    loose = forge.repo.write_commit("main^{tree}", ["main"], "loose\n", ALICE)
    assert forge.publish(request(forge, base_sha=loose)).status is Status.BLOCKED


def test_an_engine_made_before_the_base_got_another_is_blocked(forge: LocalForge) -> None:
    early = request(forge, "sha256:bb")
    commit_on(forge, "main", {f"{FOLDER}README.md": b"# other\n"})
    assert forge.publish(early).status is Status.BLOCKED


def test_a_base_that_moved_under_an_open_pull_request_leads_to_an_update(forge: LocalForge) -> None:
    forge.publish(request(forge))
    commit_on(forge, "main", {f"{FOLDER}README.md": b"# other\n"})
    assert forge.preview(ENGINE, "sha256:aa").status is Status.UPDATED
    assert forge.publish(request(forge)).status is Status.UPDATED
    assert forge.publish(request(forge)).status is Status.UNCHANGED


def test_an_unrelated_move_of_the_base_changes_nothing(forge: LocalForge) -> None:
    forge.publish(request(forge))
    commit_on(forge, "main", {"docs/note.md": b"x"})
    assert forge.publish(request(forge)).status is Status.UNCHANGED


def test_the_bot_cannot_approve(forge: LocalForge) -> None:
    forge.publish(request(forge))
    with pytest.raises(InputError, match="bot cannot approve"):
        forge.approve(1, BOT)


def test_history_is_only_ever_added_to(forge: LocalForge) -> None:
    forge.publish(request(forge))
    seen = [forge.repo.commit_at("refs/metainfer/pulls/1")]
    forge.comment(1, BOB, "looks fine")
    seen.append(forge.repo.commit_at("refs/metainfer/pulls/1"))
    forge.publish(request(forge, "sha256:bb"))
    seen.append(forge.repo.commit_at("refs/metainfer/pulls/1"))
    for older, newer in itertools.pairwise(seen):
        assert older
        assert newer
        assert older != newer
        assert forge.repo.is_ancestor(older, newer)


def test_new_knowledge_about_an_unchanged_engine_is_one_commit(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.approve(1, ALICE)
    forge.merge(1, ALICE)
    outcome = forge.publish(request(forge, proposals=KNOWLEDGE, regenerate=True))
    assert outcome.status is Status.CREATED
    assert forge.repo.read("diff", "--name-only", "main", BRANCH).decode().split() == list(KNOWLEDGE)
    assert forge.repo.read("rev-list", "--count", f"main..{BRANCH}") == b"1\n"
    forge.approve(2, ALICE)
    forge.merge(2, ALICE)
