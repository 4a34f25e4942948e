"""What is done with a pull request, an issue, a release: each with what must be there, whatever went wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from metainfer.ci.posting import post_comment
from metainfer.ci.publishing import say_stopped
from metainfer.ci.stacking import ask_for_engines
from metainfer.forge.github.forge import GitHubForge
from metainfer.forge.github.releases import Releases
from metainfer.forge.protocol import BOT, Status
from metainfer.release.tag import release, release_notes
from metainfer.review.answer import answer, carry_out, find_remark
from metainfer.review.check import CONTEXT, report_github, report_group
from metainfer.review.dashboard.gather import gather
from metainfer.review.dashboard.issue import Dashboard
from metainfer.review.dashboard.render import MARKER, render
from tests.forge.engines import ALICE, ENGINE
from tests.github.faulty import Ground, Operation
from tests.github.faulty_publishing import AA, BB, BRANCH, BY_HAND, KNOWLEDGE, holds, only_these, placed, publish, said
from tests.review.repository import CHECK

LOOSER = {"ckb/family/a/check.py": CHECK.replace("1e-5", "1e-3").encode()}
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
FILES_OF_RELEASE = {"tiny_cpu-0.1.0-py3-none-any.whl": b"wheel", "SHA256SUMS": b"0  tiny\n"}
TAG = f"{ENGINE}/v0.1.0"
ALL_WELL: frozenset[Any] = frozenset({True})


def _open(ground: Ground) -> None:
    publish(ground, AA)


# People


def _approve(ground: Ground, forge: GitHubForge) -> bool:
    return "@alice" in {review.by for review in forge.approve(1, ALICE).reviews}


def _is_approved(ground: Ground) -> None:
    (pull,) = ground.pulls("open")
    assert pull.pull is not None
    (review,) = pull.pull.reviews
    assert (review.user.login, review.state, review.commit_id) == ("alice", "APPROVED", ground.tip(BRANCH))


def _open_and_approve(ground: Ground) -> None:
    publish(ground, AA)
    ground.as_("alice", "POST", "/pulls/1/reviews", {"event": "APPROVE"})


def _merge(ground: Ground, forge: GitHubForge) -> bool:
    return forge.merge(1, ALICE, ground.tip(BRANCH)).commit == ground.tip("main")


def _is_merged(ground: Ground) -> None:
    (pull,) = ground.pulls()
    assert pull.pull is not None
    assert pull.pull.merged_at is not None
    assert pull.pull.merge_commit == ground.tip("main")
    holds(ground, "main", placed(AA))
    assert ground.repo.bare.git("rev-list", "--merges", "--count", "main") == "1"
    only_these(ground)


def _comment(ground: Ground, forge: GitHubForge) -> bool:
    return forge.comment(1, ALICE, "Looks good.").comments[-1].text == "Looks good."


def _is_commented(ground: Ground) -> None:
    said(ground, 1, "Looks good.")


def _close(ground: Ground, forge: GitHubForge) -> bool:
    return forge.close(1, ALICE, "Not now.").state == "closed"


def _is_closed(ground: Ground) -> None:
    (pull,) = ground.pulls("closed")
    assert pull.closed_by is not None
    assert pull.closed_by.login == "alice"
    said(ground, 1, "Not now.")


def _put_label(ground: Ground, forge: GitHubForge) -> bool:
    return forge.label(1, ALICE, "metainfer/stop").labels == ("metainfer/stop",)


def _has_label(ground: Ground) -> None:
    assert ground.repo.issues[1].labels == ["metainfer/stop"]


def _open_with_label(ground: Ground) -> None:
    publish(ground, AA)
    ground.as_("alice", "POST", "/issues/1/labels", {"labels": ["metainfer/stop", "other"]})


def _take_label(ground: Ground, forge: GitHubForge) -> bool:
    return forge.label(1, ALICE, "metainfer/stop", remove=True).labels == ("other",)


def _has_no_label(ground: Ground) -> None:
    assert ground.repo.issues[1].labels == ["other"]


# What the workflows say


def _report(ground: Ground, forge: GitHubForge) -> bool:
    file = ground.folder / "report.md"
    file.write_text("### Report\n\nAll is well.\n")
    return post_comment(forge, 1, file, "nightly") != ""


def _is_reported(ground: Ground) -> None:
    said(ground, 1, "All is well.\n\n<!-- metainfer-comment:nightly -->")


def _report_before(ground: Ground) -> None:
    publish(ground, AA)
    ground.as_("alice", "POST", "/issues/1/comments", {"body": "First.\n\n<!-- metainfer-comment:nightly -->\n"})
    ground.forge().conversation.say(1, "nightly", "All is bad.")


def _is_reported_anew(ground: Ground) -> None:
    said(ground, 1, "First.", "All is well.")


def _stop(ground: Ground, forge: GitHubForge) -> Status:
    return say_stopped(forge, ENGINE, BB).status


def _by_hand(ground: Ground) -> None:
    publish(ground, AA)
    ground.repo.bare.commit(BRANCH, BY_HAND)


def _is_stopped(ground: Ground) -> None:
    said(ground, 1, "Stopped: the branch holds commits that the bot did not make")


def _loosen(ground: Ground) -> None:
    start = ground.repo.bare.tip("refs/heads/main")
    ground.repo.bare.commit("work", LOOSER, start=start)
    ground.as_("bob", "POST", "/pulls", {"title": "Looser", "head": "work", "base": "main"})
    ground.as_("alice", "POST", "/issues/1/labels", {"labels": ["other"]})


def _judge(ground: Ground, forge: GitHubForge) -> str:
    return report_github(forge, 1, "https://example.org/run").verdict.state


def _status(ground: Ground, commit: str) -> list[str]:
    return [status.state for status in ground.repo.statuses if (status.sha, status.context) == (commit, CONTEXT)]


def _is_waiting(ground: Ground) -> None:
    assert _status(ground, ground.tip("work")) == ["pending"]
    assert sorted(ground.repo.issues[1].labels) == ["ckb-change", "ckb-weakened", "other"]
    said(ground, 1, "THIS WEAKENS KNOWLEDGE")


def _loosen_and_approve(ground: Ground) -> None:
    """Judged once; approved since, and no longer weakening: status, comment and labels all have to change."""
    _loosen(ground)
    _judge(ground, ground.forge())
    ground.repo.bare.commit("work", KNOWLEDGE)
    ground.as_("alice", "POST", "/pulls/1/reviews", {"event": "APPROVE"})


def _is_passed(ground: Ground) -> None:
    assert _status(ground, ground.tip("work")) == ["success"]
    assert "ckb-weakened" in ground.repo.issues[1].labels or "ckb-change" in ground.repo.issues[1].labels
    said(ground, 1, "### Knowledge review: passed")


def _group(ground: Ground, forge: GitHubForge) -> str:
    return report_group(forge, 1, ground.tip("queue")).verdict.state


def _queue(ground: Ground) -> None:
    _loosen(ground)
    ground.repo.bare.commit("queue", {}, start=ground.tip("work"))


def _is_queued(ground: Ground) -> None:
    assert _status(ground, ground.tip("queue")) == ["pending"]


def _keep(ground: Ground, forge: GitHubForge) -> bool:
    return bool(Dashboard(forge.connection).keep(render(gather(forge), NOW), NOW).number)


def _has_dashboard(ground: Ground) -> None:
    (issue,) = [one for one in ground.repo.issues.values() if one.pull is None]
    assert (issue.state, issue.labels) == ("open", ["metainfer-dashboard"])
    assert (issue.body or "").rstrip().endswith(MARKER)
    assert ENGINE in (issue.body or "")
    assert "2026-12-01 12:00" in (issue.body or "")


def _old_dashboards(ground: Ground) -> None:
    """Two, as two first runs at a time may have left them; the older one closed by a tidy robot."""
    for _ in range(2):
        body = {"title": "metainfer dashboard", "body": f"old\n\n{MARKER}", "labels": ["metainfer-dashboard"]}
        ground.connection().request("POST", f"/repos/{ground.slug}/issues", body)
    ground.as_("alice", "PATCH", "/issues/1", {"state": "closed"})


def _has_one_dashboard(ground: Ground) -> None:
    first, second = (one for one in ground.repo.issues.values() if one.pull is None)
    assert (first.state, second.state, second.body) == ("open", "closed", "The dashboard is #1.\n")
    assert "2026-12-01 12:00" in (first.body or "")


# Commands and releases


def _order(ground: Ground) -> None:
    publish(ground, AA)
    ground.as_("alice", "POST", "/issues/1/comments", {"body": "/metainfer regenerate"})


def _obey(ground: Ground, forge: GitHubForge) -> bool:
    remark = find_remark(forge, 1, ground.repo.issues[1].comments[0].id)
    given = answer(forge, remark, ground.folder / "state")
    carry_out(forge, 1, given)
    return given.action == "regenerate"


def _is_obeyed(ground: Ground) -> None:
    assert ground.repo.dispatches, "what was asked for was never started"
    assert all(one["inputs"] == {"specs": ENGINE, "regenerate": "true"} for one in ground.repo.dispatches)
    said(ground, 1, "/metainfer regenerate", "Making `tiny-cpu` again, as `@alice` asked")


def _ask(ground: Ground, forge: GitHubForge) -> None:
    ask_for_engines(forge, 1)


def _is_asked(ground: Ground) -> None:
    assert ground.repo.dispatches, "what was asked for was never started"
    assert all(one["inputs"] == {"pull": "1"} for one in ground.repo.dispatches)


def _engine_on_main(ground: Ground) -> None:
    ground.repo.bare.commit("main", dict(placed(AA)))


def _release(ground: Ground, forge: GitHubForge) -> bool:
    made = release(forge, ENGINE, BOT)
    return bool(Releases(forge.connection).publish(made.tag, "tiny", release_notes(forge, made), _files(ground)))


def _files(ground: Ground) -> dict[str, Path]:
    files = {name: ground.folder / name for name in FILES_OF_RELEASE}
    for name, path in files.items():
        path.write_bytes(FILES_OF_RELEASE[name])
    return files


def _is_released(ground: Ground) -> None:
    (made,) = ground.repo.releases
    assert (made.tag, made.draft) == (TAG, False)
    assert {asset.name: asset.data for asset in made.assets} == FILES_OF_RELEASE
    assert ground.repo.bare.commit_at(f"refs/tags/{TAG}") == ground.tip("main")
    assert ground.repo.bare.git("cat-file", "-t", f"refs/tags/{TAG}") == "tag"
    only_these(ground, f"tags/{TAG}")


def _half_a_release(ground: Ground) -> None:
    """A draft with a file that broke off, one that nobody wants, and none of the others."""
    _engine_on_main(ground)
    release(ground.forge(), ENGINE, BOT)
    connection = ground.connection()
    draft = connection.repo.create_git_release(TAG, "tiny", "Notes", draft=True)
    for name, data in (("SHA256SUMS", b"0  "), ("old.whl", b"old")):
        (ground.folder / "half").write_bytes(data)
        draft.upload_asset(str(ground.folder / "half"), name=name, content_type="application/octet-stream")


PEOPLE = (
    Operation("approved", _open, _approve, _is_approved, ALL_WELL, ["POST .*/pulls/1/reviews"], "alice"),
    Operation("merged", _open_and_approve, _merge, _is_merged, ALL_WELL, ["PUT .*/pulls/1/merge"], "alice"),
    Operation("commented", _open, _comment, _is_commented, ALL_WELL, ["POST .*/issues/1/comments"], "alice"),
    Operation("closed", _open, _close, _is_closed, ALL_WELL, ["PATCH .*/pulls/1$"], "alice"),
    Operation("labelled", _open, _put_label, _has_label, ALL_WELL, ["POST .*/issues/1/labels"], "alice"),
    Operation("unlabelled", _open_with_label, _take_label, _has_no_label, ALL_WELL, ["DELETE .*/labels/"], "alice"),
)
REPORTED = Operation("reported", _open, _report, _is_reported, ALL_WELL, ["GET .*/user$", "POST .*/issues/1/comments"])
WORDS = (
    REPORTED,
    Operation(
        "reported anew", _report_before, _report, _is_reported_anew, ALL_WELL, ["PATCH .*/issues/comments/[0-9]+$"]
    ),
    Operation("stopped", _by_hand, _stop, _is_stopped, frozenset({Status.BLOCKED}), ["POST .*/issues/1/comments"]),
    Operation(
        "waiting",
        _loosen,
        _judge,
        _is_waiting,
        frozenset({"pending"}),
        ["POST .*/statuses/", "POST .*/labels$", "POST .*/issues/1/comments"],
    ),
    Operation(
        "passed",
        _loosen_and_approve,
        _judge,
        _is_passed,
        frozenset({"success"}),
        ["POST .*/statuses/", "PATCH .*/issues/comments/"],
    ),
    Operation("queued", _queue, _group, _is_queued, frozenset({"pending"}), ["POST .*/statuses/"]),
    Operation("dashboard", _open, _keep, _has_dashboard, ALL_WELL, ["GET .*/runs$", "POST .*/issues$"]),
    Operation("dashboard again", _old_dashboards, _keep, _has_one_dashboard, ALL_WELL, ["PATCH .*/issues/1$"]),
)
ORDERED = Operation(
    "ordered",
    _order,
    _obey,
    _is_obeyed,
    ALL_WELL,
    ["POST .*/generate.yml/dispatches", "POST .*/issues/1/comments"],
    may_repeat=["/repos/{owner}/{repo}/actions/workflows/{workflow_id}/dispatches"],
)
ASKED = Operation(
    "asked",
    _open,
    _ask,
    _is_asked,
    frozenset({None}),
    ["POST .*/generate.yml/dispatches"],
    may_repeat=ORDERED.may_repeat,
)
RELEASED = Operation(
    "released",
    _engine_on_main,
    _release,
    _is_released,
    ALL_WELL,
    ["POST .*/git-receive-pack", "POST .*/releases$", "POST .*/assets$", "PATCH .*/releases/[0-9]+$"],
)
RELEASED_ON = Operation(
    "released on",
    _half_a_release,
    _release,
    _is_released,
    ALL_WELL,
    ["DELETE .*/releases/assets/", "POST .*/assets$", "PATCH .*/releases/[0-9]+$"],
)
REVIEWING = (*PEOPLE, *WORDS, ORDERED, ASKED, RELEASED, RELEASED_ON)
