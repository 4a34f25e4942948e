"""The check on GitHub: what it says there, for which heads, and that it says it once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metainfer.errors import ConflictError, InputError
from metainfer.review.check import CONTEXT, check_github, open_numbers, report_github
from metainfer.review.people import People
from metainfer.review.verdict import State
from tests.github.faults import DROPPED_AFTER, DROPPED_BEFORE, GATEWAY_AFTER, GATEWAY_BEFORE, Fault
from tests.github.stub import Stub
from tests.review.place import CHECK_RIGHTS, Place
from tests.review.repository import CHECK, CODEOWNERS

LOOSER = {"ckb/family/a/check.py": CHECK.replace("1e-5", "1e-3").encode()}
ENGINE = {"engines/tiny/README.md": b"# tiny\n"}


def test_a_change_of_knowledge_waits_and_is_called_out_then_passes_with_the_owners_approval(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    head = place.head(number)
    report_github(place.forge(), number)
    assert place.status(head) == ("pending", "waits for @alice: ckb/family/a/check.py")
    assert place.labels(number) == {"ckb-change", "ckb-weakened"}
    (comment,) = place.comments(number)
    assert "THIS WEAKENS KNOWLEDGE: tolerance raised, version not raised" in comment
    place.approve(number, "alice")
    report_github(place.forge(), number)
    assert place.status(head) == ("success", f"approved by @alice at {head[:12]}")
    (comment,) = place.comments(number)
    assert comment.startswith("### Knowledge review: passed")


def test_said_again_nothing_is_sent(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    report_github(place.forge(), number)
    place.stub.reset()
    report_github(place.forge(), number)
    assert {answer.method for answer in place.stub.journal.answers} == {"GET"}


def test_an_engine_alone_passes_without_a_word(place: Place) -> None:
    number = place.pull(ENGINE, "bob")
    report_github(place.forge(), number)
    assert place.status(place.head(number)) == ("success", "no change of knowledge")
    assert (place.comments(number), place.labels(number)) == ([], set())


def test_a_new_head_needs_a_new_approval(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    old = place.head(number)
    place.approve(number, "alice")
    report_github(place.forge(), number)
    new = place.push("work", {"ckb/family/a/check.py": CHECK.replace("1e-5", "1e-2").encode()}, "bob")
    report_github(place.forge(), number)
    assert place.status(old) == ("success", f"approved by @alice at {old[:12]}")
    assert place.status(new) == ("pending", "waits for @alice: ckb/family/a/check.py")
    assert f"@&#8203;alice approved {old[:12]}, and the head is now {new[:12]}" in place.comments(number)[0]


def test_an_approval_that_was_dismissed_or_taken_back_does_not_count(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    review = place.approve(number, "alice")
    place.as_("octo", "PUT", f"/pulls/{number}/reviews/{review}/dismissals", {"message": "no"})
    assert check_github(place.forge(), number, People.of(place.forge().connection)).verdict.state is State.PENDING
    place.approve(number, "alice")
    place.as_("alice", "POST", f"/pulls/{number}/reviews", {"event": "REQUEST_CHANGES", "body": "wait"})
    assert check_github(place.forge(), number, People.of(place.forge().connection)).verdict.state is State.FAILURE


def test_what_others_approve_is_nobodys_leave(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    place.approve(number, "carol")
    report_github(place.forge(), number)
    assert place.status(place.head(number)) == ("pending", "waits for @alice: ckb/family/a/check.py")


def test_an_owner_who_may_no_longer_write_does_not_count(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    place.approve(number, "alice")
    place.repo.roles["alice"] = "read"
    checked = check_github(place.forge(), number, People.of(place.forge().connection))
    assert checked.verdict.state is State.PENDING
    assert any("may not write here" in reason for reason in checked.verdict.reasons)


def test_a_head_that_makes_itself_its_own_owner_gains_nothing(place: Place) -> None:
    number = place.pull({**LOOSER, CODEOWNERS: b"* @bob\n/ckb/ @bob @carol\n"}, "bob")
    place.approve(number, "carol")
    report_github(place.forge(), number)
    assert place.status(place.head(number)) == ("pending", "waits for @alice: ckb/family/a/check.py")


def test_a_pull_request_for_another_branch_earns_no_status(place: Place) -> None:
    """Its own CODEOWNERS would let anybody pass, and the status would count on main as well."""
    evil = place.push("evil", {CODEOWNERS: b"/ckb/ @carol\n"}, "bob")
    place.repo.bare.commit("work", LOOSER, start=evil)
    body = {"title": "x", "head": "work", "base": "evil", "body": ""}
    number = int(place.as_("bob", "POST", "/pulls", body)["number"])
    place.approve(number, "carol")
    with pytest.raises(InputError, match="for evil, not for main"):
        report_github(place.forge(), number)
    assert place.status(place.head(number)) is None


def test_a_closed_one_is_left_alone(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    place.as_("bob", "PATCH", f"/pulls/{number}", {"state": "closed"})
    with pytest.raises(ConflictError, match="closed"):
        report_github(place.forge(), number)


def test_labels_that_a_person_moves_are_put_right(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    report_github(place.forge(), number)
    place.as_("bob", "DELETE", f"/issues/{number}/labels/ckb-weakened")
    report_github(place.forge(), number)
    assert place.labels(number) == {"ckb-change", "ckb-weakened"}
    place.repo.bare.set_ref("refs/heads/work", place.push("other", ENGINE, "bob"))
    report_github(place.forge(), number)
    assert place.labels(number) == set()
    assert "no change of knowledge" in place.comments(number)[0]


def test_another_accounts_comment_with_our_mark_is_not_taken_for_ours(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    fake = "Passed!\n\n<!-- metainfer-comment:ckb-review -->"
    place.as_("bob", "POST", f"/issues/{number}/comments", {"body": fake})
    report_github(place.forge(), number)
    assert len(place.comments(number)) == 2
    assert place.comments(number)[0] == fake


# Teams


@pytest.fixture
def with_team(stub: Stub, tmp_path: Path) -> Place:
    from tests.review.repository import knowledge

    files = knowledge() | {CODEOWNERS: b"/ckb/ @octo/knowledge\n"}
    made = Place(stub, f"octo/teams-{tmp_path.name}", tmp_path, files)
    stub.team("octo", "knowledge", {"bob": "active", "alice": "pending"}, **{made.slug.split("/")[1]: "write"})
    return made


def test_a_teams_member_counts_with_a_token_that_may_know(with_team: Place) -> None:
    place = with_team
    number = place.pull(LOOSER, "alice")
    place.approve(number, "bob")
    members = place.stub.token("octo", "fine-grained", {"members": "read", "metadata": "read"})
    forge = place.forge()
    people = People.of(forge.connection, {"METAINFER_MEMBERS_TOKEN": members})
    assert check_github(forge, number, people).verdict.state is State.SUCCESS


def test_without_such_a_token_it_waits_and_says_why(with_team: Place) -> None:
    place = with_team
    number = place.pull(LOOSER, "alice")
    place.approve(number, "bob")
    checked = check_github(place.forge(), number, People.of(place.forge().connection, {}))
    assert checked.verdict.state is State.PENDING
    assert any("METAINFER_MEMBERS_TOKEN" in reason for reason in checked.verdict.reasons)


# As a job


def test_the_command_sets_the_status_and_says_the_verdict(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    done = place.run("ckb-review", str(number))
    assert done.returncode == 0, done.stderr
    assert "pending: waits for @alice" in done.stdout
    assert "!! tolerance raised: ckb/family/a/check.py" in done.stdout
    assert done.stderr == ""
    assert place.status(place.head(number)) == ("pending", "waits for @alice: ckb/family/a/check.py")


def test_a_dry_run_says_it_here_only(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    done = place.run("ckb-review", str(number), "--dry-run")
    assert done.returncode == 1
    assert place.status(place.head(number)) is None


def event(place: Place, name: str, payload: object) -> dict[str, str]:
    path = place.folder / "event.json"
    path.write_text(json.dumps(payload))
    return {"GITHUB_EVENT_PATH": str(path), "GITHUB_EVENT_NAME": name}


def test_a_schedule_judges_all_that_is_open(place: Place) -> None:
    numbers = [place.pull(LOOSER, "bob", branch) for branch in ("one", "two")]
    assert list(open_numbers(place.forge())) == numbers
    done = place.run("ckb-review", **event(place, "schedule", {"schedule": "*/20 * * * *"}))
    assert done.returncode == 0, done.stderr
    assert [place.status(place.head(number)) is not None for number in numbers] == [True, True]


def test_one_that_github_refuses_does_not_keep_the_others_from_being_judged(place: Place) -> None:
    first, second = (place.pull(LOOSER, "bob", branch) for branch in ("one", "two"))
    said = {"message": "Unable to create comment because issue is locked."}
    place.stub.faults.plan(Fault("locked", False, 403, body=said), "POST", f"/issues/{first}/comments")
    done = place.run("ckb-review", **event(place, "schedule", {"schedule": "*/20 * * * *"}))
    assert place.status(place.head(second)) == ("pending", "waits for @alice: ckb/family/a/check.py")
    assert done.returncode == 3
    assert f"#{first}: " in done.stdout
    assert "issue is locked" in done.stderr


def test_a_merge_queues_commit_gets_the_verdict_of_its_pull_request(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    queued = place.push("queued", LOOSER, "bob")
    group = {"head_sha": queued, "head_ref": f"refs/heads/gh-readonly-queue/main/pr-{number}-{queued}"}
    done = place.run("ckb-review", **event(place, "merge_group", {"merge_group": group}))
    assert done.returncode == 0, done.stderr
    assert place.status(queued) == ("pending", "waits for @alice: ckb/family/a/check.py")


def test_a_token_that_may_not_write_is_told_what_it_lacks(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    weak = place.stub.actions_token(place.slug, **{**CHECK_RIGHTS, "statuses": "read"})
    done = place.run("ckb-review", str(number), token=weak)
    assert done.returncode == 3
    assert "statuses=write" in done.stderr
    assert place.status(place.head(number)) is None


@pytest.mark.parametrize("fault", [DROPPED_BEFORE, DROPPED_AFTER, GATEWAY_BEFORE, GATEWAY_AFTER], ids=str)
@pytest.mark.parametrize("path", ["/statuses/", "/comments", "/labels"])
def test_whatever_answer_is_lost_all_is_said_once(place: Place, path: str, fault: Fault) -> None:
    number = place.pull(LOOSER, "bob")
    place.stub.faults.plan(fault, "POST", path)
    report_github(place.forge(), number)
    assert place.stub.faults.struck, "the fault met no call"
    found = place.as_("alice", "GET", f"/commits/{place.head(number)}/statuses")
    assert [status["context"] for status in found] == [CONTEXT]
    assert len(place.comments(number)) == 1
    assert place.labels(number) == {"ckb-change", "ckb-weakened"}


def test_an_approval_that_comes_while_it_speaks_is_seen(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    place.stub.faults.before("POST", "/comments", lambda: place.approve(number, "alice"))
    report_github(place.forge(), number)
    assert place.status(place.head(number)) == ("success", f"approved by @alice at {place.head(number)[:12]}")


def test_an_approval_that_goes_while_it_speaks_is_not_kept(place: Place) -> None:
    number = place.pull(LOOSER, "bob")
    review = place.approve(number, "alice")
    dismissal = f"/pulls/{number}/reviews/{review}/dismissals"
    place.stub.faults.before("POST", "/comments", lambda: place.as_("octo", "PUT", dismissal, {"message": "no"}))
    report_github(place.forge(), number)
    assert place.status(place.head(number)) == ("pending", "waits for @alice: ckb/family/a/check.py")
