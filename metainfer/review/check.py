"""The check `ckb-review`: judges a pull request on any forge, and on GitHub says so where it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.errors import ConflictError, InputError
from metainfer.forge.merging import read_codeowners
from metainfer.forge.plumbing import Repository
from metainfer.forge.protocol import NoSuchPullError, PullRequest
from metainfer.review.knowledge import KnowledgeChange, read_knowledge_change
from metainfer.review.report import labels, render
from metainfer.review.verdict import Approval, Reviews, State, Verdict, judge

if TYPE_CHECKING:
    from github.PullRequest import PullRequest as Pull

    from metainfer.forge.github.connect import Connection
    from metainfer.forge.github.forge import GitHubForge
    from metainfer.forge.local import LocalForge
    from metainfer.review.people import People

CONTEXT = "ckb-review"
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Checked:
    """One judged head."""

    number: int
    head: str
    change: KnowledgeChange
    verdict: Verdict


def check_local(forge: LocalForge, number: int) -> Checked:
    """Judge a pull request of a local forge, where approvers are known by what they sign with."""
    pull = forge.get(number)
    approvals = [Approval(review.by, (review.by,), review.head) for review in pull.reviews]
    return _checked(forge.repo, pull, forge.base_sha(pull.base), Reviews(approvals))


def check_github(forge: GitHubForge, number: int, people: People) -> Checked:
    """Judge one on GitHub. Only reads. InputError if it is not for a branch that people rely on."""
    from metainfer.forge.github.pulls import state_of

    pull = _pull(forge, number)
    if state_of(pull) != "open":
        raise ConflictError(f"pull request #{number} is {state_of(pull)}; there is nothing to review")
    default = default_branch(forge.connection)
    if pull.base.ref != default:
        # A status belongs to a commit and not to a pull request: one earned against a branch that anybody may
        # write would count on the default branch as well.
        raise InputError(
            f"pull request #{number} is for {pull.base.ref}, not for {default}: its knowledge is not judged"
        )
    base = forge.base_sha(pull.base.ref)
    if not forge.mirror.has(pull.head.sha):
        raise InputError(
            f"#{number}: its head {pull.head.sha[:12]} is not to be had from {forge.address()}; push it again"
        )
    record = forge.pulls.as_record(pull)
    repo = forge.mirror.repo
    change, owners = read_knowledge_change(repo, base, record.head), read_codeowners(repo, base)
    standing = forge.pulls.standing(pull)
    reviews = Reviews(
        # Nobody is asked about when there is nothing to approve.
        approvals=people.approvals(standing.approvals, owners, change.paths) if change.paths else [],
        objectors=standing.objectors,
        author=f"@{pull.user.login}",
        unseen_teams=people.unseen_teams(owners, change.paths),
    )
    return Checked(number, record.head, change, judge(change, owners, reviews, record.head))


def report_github(forge: GitHubForge, number: int, target_url: str = "") -> Checked:
    """Judge, then say so: status, labels, one comment. Safe to repeat; looks again after it spoke."""
    from metainfer.review.people import People

    checked = check_github(forge, number, People.of(forge.connection))
    for _ in range(_ROUNDS):
        _say(forge, checked, target_url)
        # An approval may have come or gone meanwhile, and its own run may have spoken before this one.
        again = check_github(forge, number, People.of(forge.connection))
        if (again.head, again.verdict) == (checked.head, checked.verdict):
            break
        checked = again
    return checked


def report_group(forge: GitHubForge, number: int, commit: str, target_url: str = "") -> Checked:
    """The same for a merge queue's commit: it may go in if the pull request that it is made for may."""
    from metainfer.review.people import People
    from metainfer.review.statuses import Status, Statuses

    checked = check_github(forge, number, People.of(forge.connection))
    status = Status(checked.verdict.state, checked.verdict.description, target_url)
    Statuses(forge.connection).put(commit, CONTEXT, status)
    return checked


def open_numbers(forge: GitHubForge) -> Sequence[int]:
    """Every open pull request for the default branch, whoever opened it."""
    repo, base = forge.connection.repo, default_branch(forge.connection)
    found = forge.connection.read("listing pull requests", lambda: list(repo.get_pulls("open", base=base)))
    return sorted(pull.number for pull in found)


def default_branch(connection: Connection) -> str:
    """The branch whose workflows, specs and knowledge count."""
    return str(connection.read("asking for the default branch", lambda: connection.repo.default_branch))


def _say(forge: GitHubForge, checked: Checked, target_url: str) -> None:
    from metainfer.review.statuses import Status, Statuses

    def set_status() -> None:
        status = Status(checked.verdict.state, checked.verdict.description, target_url)
        Statuses(forge.connection).put(checked.head, CONTEXT, status)

    if checked.verdict.state is not State.SUCCESS:
        set_status()  # first: what may not be merged must not wait for words
    for name, wanted in labels(checked.change).items():
        (forge.conversation.put_label if wanted else forge.conversation.take_label)(checked.number, name)
    if checked.change.paths or forge.conversation.has_said(checked.number, CONTEXT):
        forge.conversation.say(checked.number, CONTEXT, render(checked.change, checked.verdict, checked.head))
    if checked.verdict.state is State.SUCCESS:
        set_status()


def _checked(repo: Repository, pull: PullRequest, base: str, reviews: Reviews) -> Checked:
    change = read_knowledge_change(repo, base, pull.head)
    return Checked(pull.number, pull.head, change, judge(change, read_codeowners(repo, base), reviews, pull.head))


def _pull(forge: GitHubForge, number: int) -> Pull:
    pull = forge.pulls.one(number)
    if pull is None:
        raise NoSuchPullError(f"there is no pull request #{number} in {forge.connection.address.slug}")
    return pull
