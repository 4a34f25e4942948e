"""Faults that other bots are known for, each tried here on real Git and a strict server: none of them happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from metainfer.errors import MachineError
from metainfer.forge.body import BodyParts, KnowledgeChange, render_body
from metainfer.forge.github.forge import GitHubForge
from metainfer.forge.markers import read_marker, with_marker
from metainfer.forge.protocol import BOT, STOP_LABEL, PublishOutcome, PublishRefusedError, Status
from metainfer.pipeline.stopping import stop_label_watch
from metainfer.release.tag import release
from tests.forge.engines import ENGINE, FOLDER, evidence, manifest
from tests.github.faulty import Ground
from tests.github.faulty_publishing import (
    AA,
    BB,
    BRANCH,
    BY_HAND,
    FILES,
    only_these,
    placed,
    proposes,
    publish,
    request,
)
from tests.github.stub import Stub
from tests.github.stub.pulls import BODY_LIMIT

APPROVE = {"event": "APPROVE"}
PROTECTION = {
    "required_status_checks": None,
    "enforce_admins": True,
    "required_pull_request_reviews": {"required_approving_review_count": 1, "dismiss_stale_reviews": True},
    "restrictions": None,
}


@pytest.fixture
def ground(stub: Stub, slug: str, tmp_path: Path) -> Ground:
    return Ground(stub, slug, tmp_path, FILES)


def run(ground: Ground, inputs: str, *, regenerate: bool = False) -> PublishOutcome:
    """One run of the bot, in a process of its own."""
    return ground.forge().publish(request(ground, inputs, regenerate=regenerate))


def pushes(ground: Ground) -> int:
    return sum(call.path.endswith("/git-receive-pack") for call in ground.stub.faults.calls if call.method == "POST")


# 30: a person's commit


def test_fault_30_a_persons_commit_stays_and_is_spoken_of_once_with_the_way_out(ground: Ground) -> None:
    publish(ground, AA)
    theirs = ground.repo.bare.commit(BRANCH, BY_HAND)
    outcomes = [run(ground, inputs) for inputs in (AA, BB, "sha256:cc")]
    assert {outcome.status for outcome in outcomes} == {Status.BLOCKED}
    assert ground.tip(BRANCH) == theirs
    (comment,) = ground.comments(1)
    assert comment.startswith("Stopped: the branch holds commits that the bot did not make")
    assert "`/metainfer regenerate`" in comment


def test_fault_30_what_a_person_asked_to_be_replaced_can_still_be_had(ground: Ground) -> None:
    publish(ground, AA)
    theirs = ground.repo.bare.commit(BRANCH, BY_HAND)
    assert run(ground, BB, regenerate=True).status is Status.UPDATED
    proposes(ground, BB)
    assert f"`git fetch origin {theirs}` still gets it" in ground.comments(1)[-1]
    assert ground.forge().mirror.has(theirs)


def test_fault_30_what_a_person_pushes_after_they_asked_is_not_replaced(ground: Ground) -> None:
    """They asked to have one commit replaced, and another one came while the engine was being made."""
    publish(ground, AA)
    ground.repo.bare.commit(BRANCH, BY_HAND)
    later: list[str] = []
    ground.stub.faults.before(
        "POST",
        "/git-receive-pack$",
        lambda: later.append(ground.repo.bare.commit(BRANCH, {f"{FOLDER}more.py": b"1\n"})),
    )
    assert run(ground, BB, regenerate=True).status is Status.BLOCKED
    assert ground.tip(BRANCH) == later[0]


# 31: approvals


def test_fault_31_nothing_is_pushed_without_a_difference_so_approvals_stay(ground: Ground) -> None:
    ground.as_("octo", "PUT", "/branches/main/protection", PROTECTION)
    publish(ground, AA)
    ground.as_("alice", "POST", "/pulls/1/reviews", APPROVE)
    ground.repo.bare.commit("main", {"docs/unrelated.md": b"# more\n"})
    ground.stub.reset()
    assert run(ground, AA).status is Status.UNCHANGED
    assert run(ground, AA, regenerate=True).status is Status.UNCHANGED
    assert pushes(ground) == 0
    assert [review.by for review in ground.forge().get(1).reviews] == ["@alice"]
    assert run(ground, BB).status is Status.UPDATED  # a difference does dismiss: the test can tell
    assert ground.forge().get(1).reviews == ()


# 32: flapping, stale labels


def test_fault_32_what_a_person_closed_stays_closed_until_the_inputs_change(ground: Ground) -> None:
    publish(ground, AA)
    ground.as_("alice", "PATCH", "/pulls/1", {"state": "closed"})
    moves = ground.moves()
    assert [run(ground, AA).status for _ in range(3)] == [Status.CLOSED] * 3
    assert (len(ground.pulls()), ground.moves(), ground.comments(1)) == (1, moves, [])
    assert run(ground, BB).status is Status.CREATED
    assert run(ground, BB).status is Status.UNCHANGED
    proposes(ground, BB, 2)


def test_fault_32_what_the_bot_closed_itself_is_no_refusal(ground: Ground) -> None:
    """The spec goes to and fro: each time there is one pull request or none, and none is opened again."""
    ground.repo.bare.commit("main", dict(placed(AA)))
    for number in (1, 2):
        assert run(ground, BB).status is Status.CREATED
        proposes(ground, BB, number)
        assert run(ground, AA).status is Status.UNCHANGED
        assert ground.pulls("open") == []
    assert [run(ground, AA).status for _ in range(2)] == [Status.UNCHANGED] * 2
    assert len(ground.pulls()) == 2


def test_fault_32_no_label_that_was_left_behind_stops_anything(ground: Ground) -> None:
    publish(ground, AA)
    ground.as_("alice", "POST", "/issues/1/labels", {"labels": [STOP_LABEL, "ckb-weakened", "autorelease: pending"]})
    assert STOP_LABEL in stop_label_watch(ground.forge(), ENGINE)()
    ground.as_("alice", "PATCH", "/pulls/1", {"state": "closed"})
    assert stop_label_watch(ground.forge(), ENGINE)() == ""
    assert run(ground, BB).status is Status.CREATED
    ground.as_("alice", "POST", "/issues/2/labels", {"labels": ["autorelease: tagged"]})
    ground.as_("alice", "POST", "/pulls/2/reviews", APPROVE)
    ground.forge(ground.people["alice"]).merge(2, BOT)
    assert release(ground.forge(), ENGINE, BOT).created


# 33: races


def race(ground: Ground, theirs: str, nth: int) -> tuple[Status, Status]:
    """What a run for `theirs` comes to that takes place before our call number `nth`, and ours."""
    others: list[PublishOutcome] = []
    ground.stub.faults.before("*", "", lambda: others.append(run(ground, theirs)), nth)
    outcome = run(ground, AA)
    [other] = others
    assert (outcome.number, other.number) == (1, 1)
    proposes(ground, AA)
    return other.status, outcome.status


@pytest.mark.parametrize("theirs", [AA, BB], ids=["same inputs", "other inputs"])
@pytest.mark.parametrize("nth", range(1, 9))
def test_fault_33_a_run_that_overtakes_another_at_any_call_leaves_one_pull_request(
    ground: Ground, nth: int, theirs: str
) -> None:
    other, ours = race(ground, theirs, nth)
    assert (other, ours) == (Status.CREATED, Status.UNCHANGED if theirs == AA else Status.UPDATED)


@pytest.mark.parametrize("theirs", [AA, BB], ids=["same inputs", "other inputs"])
@pytest.mark.parametrize("nth", [9, 10])
def test_fault_33_a_run_that_comes_when_the_pull_request_is_there_leaves_one(
    ground: Ground, nth: int, theirs: str
) -> None:
    other, ours = race(ground, theirs, nth)
    same = theirs == AA
    assert (other, ours) == ((Status.UNCHANGED, Status.CREATED) if same else (Status.UPDATED, Status.UPDATED))


def test_fault_33_a_run_is_not_longer_than_the_calls_that_the_race_is_tried_at(ground: Ground) -> None:
    run(ground, AA)
    assert len(ground.stub.faults.calls) == 10


def test_fault_33_runs_at_the_same_time_leave_one_pull_request(ground: Ground) -> None:
    inputs = [AA, AA, BB, BB]
    forges = [ground.forge() for _ in inputs]
    outcomes = together([lambda f=f, i=i: f.publish(request(ground, i)) for f, i in zip(forges, inputs, strict=True)])
    assert {outcome.number for outcome in outcomes} == {1}
    assert [outcome.status for outcome in outcomes].count(Status.CREATED) == 1
    proposes(ground, ground.forge().get(1).input_hash)


def together(acts: list[Callable[[], PublishOutcome]]) -> list[PublishOutcome]:
    """Do all at a time, and give what each came to."""
    results: list[PublishOutcome | BaseException] = []

    def one(act: Callable[[], PublishOutcome]) -> None:
        try:
            results.append(act())
        except BaseException as error:
            results.append(error)

    threads = [threading.Thread(target=one, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(result, PublishOutcome) for result in results), results
    return [result for result in results if isinstance(result, PublishOutcome)]


# 34: which pull requests count


def test_fault_34_closed_ones_are_no_duplicates(ground: Ground) -> None:
    publish(ground, AA)
    ground.as_("alice", "PATCH", "/pulls/1", {"state": "closed"})
    assert run(ground, BB).number == 2


@pytest.mark.parametrize("base", ["main", "other"])
def test_fault_34_a_persons_pull_request_with_our_words_is_not_ours(ground: Ground, base: str) -> None:
    start = ground.tip("main")
    ground.repo.bare.commit("other", {"x": b"x"}, start=start)
    ground.repo.bare.commit("fix-tiny", {f"{FOLDER}README.md": b"# theirs\n"}, start=start)
    body = with_marker("Verdict: passed.", ENGINE, AA)
    theirs = {"title": f"Generate {ENGINE}", "head": "fix-tiny", "base": base, "body": body}
    ground.as_("alice", "POST", "/pulls", theirs)
    assert ground.forge().find_open(ENGINE) is None
    assert (run(ground, AA).status, run(ground, AA).number) == (Status.CREATED, 2)
    assert ground.repo.issues[1].body == body
    assert len(ground.pulls("open")) == 2


def test_fault_34_a_forks_branch_of_our_name_is_not_ours(ground: Ground) -> None:
    fork = ground.stub.repo(f"eve/{ground.repo.name}", fork_of=ground.slug)
    fork.bare.commit(BRANCH, {f"{FOLDER}README.md": b"# evil\n"}, start=ground.tip("main"))
    ground.people["eve"] = ground.stub.token("eve")
    body = with_marker("x", ENGINE, AA)
    ground.as_("eve", "POST", "/pulls", {"title": "x", "head": f"eve:{BRANCH}", "base": "main", "body": body})
    assert (run(ground, AA).status, ground.forge().find_open(ENGINE) is not None) == (Status.CREATED, True)
    assert ground.repo.issues[1].body == body
    assert read_marker(ground.repo.issues[2].body or "")["input_hash"] == AA


def test_fault_34_another_base_has_a_pull_request_of_its_own(ground: Ground) -> None:
    publish(ground, AA)
    ground.repo.bare.commit("stacked", {"x": b"x"}, start=ground.tip("main"))
    assert ground.forge().find_open(ENGINE, "stacked") is None
    assert ground.forge().find_open(ENGINE) is not None


def test_fault_34_one_that_a_person_opened_from_our_branch_is_taken_over_and_not_doubled(ground: Ground) -> None:
    publish(ground, AA)
    ground.as_("alice", "PATCH", "/pulls/1", {"state": "closed"})
    ground.as_("alice", "POST", "/pulls", {"title": "Mine", "head": BRANCH, "base": "main", "body": "By hand."})
    assert (run(ground, BB).status, len(ground.pulls("open"))) == (Status.UPDATED, 1)
    proposes(ground, BB, 2)


# 35: bounds


def test_fault_35_a_body_stays_below_githubs_limit_with_the_verdict_first_and_the_logs_cut(ground: Ground) -> None:
    told = evidence(AA, {"numerics": "failed"})
    finding = {"message": "the logits differ " * 20, "figures": {"max": 1.0}, "where": "model.py"}
    for report in told["gates"]:
        report["findings"] = [finding] * 400
    changes = [KnowledgeChange(f"ckb/family/x{n}/contract.yaml", "more words " * 40) for n in range(300)]
    files = dict.fromkeys(("README.md",), b"x")
    parts = BodyParts(
        manifest(files, AA).model_dump(mode="json"), told, changes, logs={"serving": "a line of a log\n" * 50_000}
    )
    body = render_body(parts)
    assert body.startswith("**Verdict: NOT READY: numerics")
    assert "left out" in body
    asked = request(ground, AA)
    long = type(asked)(**{**{name: getattr(asked, name) for name in asked.__slots__}, "body": body})
    ground.forge().publish(long)
    ground.as_("alice", "PATCH", "/pulls/1", {"state": "closed"})
    follows = type(asked)(**{**{n: getattr(long, n) for n in asked.__slots__}, "input_hash": BB})
    assert ground.forge().publish(follows).status is Status.CREATED
    for number in (1, 2):
        there = ground.repo.issues[number].body or ""
        assert 50_000 < len(there) <= 60_000 < BODY_LIMIT
        assert read_marker(there)["engine"] == ENGINE


def test_fault_35_a_body_that_is_too_long_is_refused_before_anything_is_written(ground: Ground) -> None:
    asked = request(ground, AA)
    long = type(asked)(**{**{name: getattr(asked, name) for name in asked.__slots__}, "body": "x" * 60_001})
    with pytest.raises(PublishRefusedError, match=r"60,?000"):
        ground.forge().publish(long)
    assert ground.pulls() == []
    only_these(ground)
    assert pushes(ground) == 0


def test_fault_35_a_comment_is_cut_and_keeps_its_key(ground: Ground) -> None:
    publish(ground, AA)
    talk = ground.forge().conversation
    for text in ("é" * 100_000, "ü" * 100_000):
        talk.say(1, "report", text)
    (comment,) = ground.comments(1)
    assert comment.startswith("ü")
    assert len(comment) <= BODY_LIMIT
    assert comment.endswith("…\n\n<!-- metainfer-comment:report -->\n")


# 36: limits


@pytest.mark.parametrize("wait_s", [7, 3600])
def test_fault_36_a_secondary_limit_at_every_call_in_turn_is_waited_for_or_told_and_gone_on_from(
    ground: Ground, wait_s: int
) -> None:
    """The limit strikes the first call, in the next run the second one, and so on: what was done is not done again."""
    from dataclasses import replace

    from tests.github.faults import SECONDARY_LIMIT

    limit = replace(SECONDARY_LIMIT, headers={"Retry-After": str(wait_s)})
    told = []
    for nth in range(1, 9):
        ground.stub.faults.clear()
        ground.stub.faults.plan(limit, "*", "/api/", nth)
        try:
            run(ground, AA)
        except MachineError as error:
            told.append(str(error))
    assert ["3600 s" in words for words in told] == ([] if wait_s == 7 else [True] * 3)
    assert (wait_s in ground.waits) is (wait_s == 7)
    assert max(ground.waits, default=0) < 300
    proposes(ground, AA)


# 40: leases


def test_fault_40_a_branch_that_moved_between_look_and_push_is_not_overwritten(ground: Ground) -> None:
    publish(ground, AA)
    theirs: list[str] = []
    ground.stub.faults.before(
        "POST", "/git-receive-pack$", lambda: theirs.append(ground.repo.bare.commit(BRANCH, BY_HAND))
    )
    assert run(ground, BB).status is Status.BLOCKED
    assert ground.tip(BRANCH) == theirs[0]


def test_fault_40_the_lease_names_its_commit_so_a_fresh_copy_can_push_and_a_stale_one_cannot(ground: Ground) -> None:
    publish(ground, AA)
    seen, ref = ground.tip(BRANCH), f"refs/heads/{BRANCH}"
    first, second = ground.forge(), ground.forge()
    news = [made(forge, ground) for forge in (first, second)]
    assert first.mirror.push(ref, news[0], seen)
    assert not second.mirror.push(ref, news[1], seen)
    assert ground.tip(BRANCH) == news[0]
    # A branch that is thought not to be there, one that is gone, and one that was never there.
    assert not second.mirror.push(ref, news[1], None)
    ground.repo.bare.set_ref(ref, None)
    assert not second.mirror.push(ref, news[1], news[0])
    assert ground.repo.bare.tip(ref) is None
    assert second.mirror.push(ref, news[1], None)


def made(forge: GitHubForge, ground: Ground) -> str:
    """A commit in a forge's own copy that nobody else has."""
    base = forge.base_sha()
    repo = forge.mirror.repo
    tree = repo.write_tree(base, {"x": repo.write_blob(str(forge.mirror.repo.git_dir).encode())})
    return repo.write_commit(tree, [base], "x\n", BOT)
