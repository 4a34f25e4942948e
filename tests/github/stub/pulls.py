"""Pull requests: list, open, change, merge."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import Field

from tests.github.stub import talk_shapes
from tests.github.stub.access import Body, Here, Number, at, has_role, page
from tests.github.stub.commit_shapes import commit_json, file_json
from tests.github.stub.diffs import changed_files, commits
from tests.github.stub.merging import merge
from tests.github.stub.refusals import Refusal, check_length, custom, invalid, not_found
from tests.github.stub.sync import bring_head, close, head_tip, nothing_between
from tests.github.stub.world import Issue, Pull, Repo, now

routes = APIRouter(prefix="/repos/{owner}/{repo}/pulls")
Reads = Annotated[Here, at("pull_requests")]
Writes = Annotated[Here, at("pull_requests", "write")]
Merges = Annotated[Here, at("contents", "write", "write")]
BODY_LIMIT = 65_536
TITLE_LIMIT = 256


class NewPull(Body):
    title: str
    head: str
    base: str
    body: str | None = None
    draft: bool = False
    maintainer_can_modify: bool = False


class ChangedPull(Body):
    title: str | None = None
    body: str | None = None
    state: Literal["open", "closed"] | None = None
    base: str | None = None
    maintainer_can_modify: bool | None = None


class MergeWish(Body):
    sha: str | None = None
    commit_title: str | None = None
    commit_message: str | None = None
    merge_method: Literal["merge", "squash", "rebase"] = "merge"


class Reviewers(Body):
    reviewers: list[str] = Field(default_factory=list)
    team_reviewers: list[str] = Field(default_factory=list)


@routes.get("")
async def list_pulls(
    here: Reads,
    state: Literal["open", "closed", "all"] = "open",
    head: str = "",
    base: str = "",
    sort: Literal["created", "updated", "popularity", "long-running"] = "created",
    direction: Literal["asc", "desc"] = "desc",
) -> Any:
    found = [issue for issue in here.repo.issues.values() if issue.pull and _listed(issue, state, head, base)]
    found.sort(key=lambda issue: (getattr(issue, f"{sort}_at", issue.created_at), issue.number))
    if direction == "desc":
        found.reverse()
    return [talk_shapes.pull(here.world, here.repo, issue, _viewer(here)) for issue in page(here, found)]


def _listed(issue: Issue, state: str, head: str, base: str) -> bool:
    pull = issue.pull
    assert pull is not None
    if state not in ("all", issue.state) or (base and pull.base_ref != base):
        return False
    owner, colon, branch = head.partition(":")
    # As on GitHub: a head without its owner filters nothing.
    return not colon or (pull.head_repo.partition("/")[0].casefold() == owner.casefold() and pull.head_ref == branch)


@routes.post("", status_code=201)
async def open_pull(here: Writes, body: NewPull) -> Any:
    repo = here.repo
    if not body.title.strip():
        raise invalid("PullRequest", "title", "missing_field")
    check_length("PullRequest", "title", body.title, TITLE_LIMIT)
    check_length("PullRequest", "body", body.body, BODY_LIMIT)
    source, branch = _source(here, body.head)
    tip = source.bare.tip(f"refs/heads/{branch}") if source else None
    if source is None or tip is None:
        raise invalid("PullRequest", "head", "invalid")
    if not has_role(here.world, source, here.user, "write") and here.token and here.token.kind != "installation":
        raise not_found()
    base = repo.bare.tip(f"refs/heads/{body.base}")
    if base is None:
        raise invalid("PullRequest", "base", "invalid")
    label = f"{source.owner.login}:{branch}"
    _refuse_second(repo, source, branch, body.base, label)
    number = repo.next_number()
    bring_head(here.world, repo, source.full_name, number, tip)
    if nothing_between(repo.bare, base, tip):
        repo.bare.set_ref(f"refs/pull/{number}/head", None)
        raise custom("PullRequest", f"No commits between {body.base} and {branch}")
    issue = Issue(number, here.world.next_id(), body.title, body.body, here.user)
    issue.pull = Pull(source.full_name, branch, body.base, tip, base, base, body.draft, body.maintainer_can_modify)
    repo.issues[number] = issue
    here.response.headers["Location"] = f"{here.world.api}/repos/{repo.full_name}/pulls/{number}"
    return talk_shapes.full_pull(here.world, repo, issue, here.user)


def _source(here: Here, head: str) -> tuple[Repo | None, str]:
    """The repository and branch of `branch` or `owner:branch`, where the owner has a fork or is ours."""
    owner, colon, branch = head.partition(":")
    if not colon:
        return here.repo, head
    if owner.casefold() == here.repo.owner.login.casefold():
        return here.repo, branch
    forks = (repo for repo in here.world.repos.values() if repo.parent == here.repo.full_name)
    return next((fork for fork in forks if fork.owner.login.casefold() == owner.casefold()), None), branch


def _refuse_second(repo: Repo, source: Repo, branch: str, base: str, label: str) -> None:
    for other in repo.issues.values():
        pull = other.pull
        if pull is None or other.state != "open":
            continue
        if (pull.head_repo, pull.head_ref, pull.base_ref) == (source.full_name, branch, base):
            raise custom("PullRequest", f"A pull request already exists for {label}.")


@routes.get("/{pull_number}")
async def get_pull(here: Reads, pull_number: Number) -> Any:
    issue = here.pull(pull_number)
    assert issue.pull is not None
    if "diff" in here.request.headers.get("accept", ""):
        text = here.repo.bare.raw("diff", "--no-color", f"{issue.pull.base_sha}...{issue.pull.head}")
        return Response(text, media_type="application/vnd.github.v3.diff; charset=utf-8")
    return talk_shapes.full_pull(here.world, here.repo, issue, _viewer(here))


@routes.patch("/{pull_number}")
async def change_pull(here: Writes, pull_number: Number, body: ChangedPull) -> Any:
    issue = here.pull(pull_number)
    pull = issue.pull
    assert pull is not None
    if here.user is not issue.user:
        here.need_role("write")
    given = body.model_fields_set
    check_length("PullRequest", "title", body.title, TITLE_LIMIT)
    check_length("PullRequest", "body", body.body, BODY_LIMIT)
    if body.state and body.state != issue.state:
        _turn(here, issue, body.state)
    if body.title is not None:
        if not body.title.strip():
            raise invalid("PullRequest", "title", "missing_field")
        issue.title = body.title
    if "body" in given:
        issue.body = body.body
    if body.base and body.base != pull.base_ref:
        tip = here.repo.bare.tip(f"refs/heads/{body.base}")
        if tip is None:
            raise invalid("PullRequest", "base", "invalid")
        pull.base_ref, pull.base_sha, pull.base_tip = body.base, tip, tip
    issue.touch()
    return talk_shapes.full_pull(here.world, here.repo, issue, here.user)


def _turn(here: Here, issue: Issue, state: str) -> None:
    """Close it, or open it again where GitHub would."""
    pull = issue.pull
    assert pull is not None
    if state == "closed":
        close(issue)
        issue.closed_by = here.user
        here.note(issue, "closed")
        return
    tip = head_tip(here.world, here.repo, issue)
    if pull.merged_at:
        raise custom("PullRequest", "state cannot be changed. The pull request cannot be reopened.")
    if tip is None:
        raise custom("PullRequest", f"state cannot be changed. The {pull.head_ref} branch has been deleted.")
    if not here.repo.bare.is_ancestor(pull.head, tip):
        message = f"state cannot be changed. The {pull.head_ref} branch was force-pushed or recreated."
        raise custom("PullRequest", message)
    source = here.world.repo(pull.head_repo)
    assert source is not None
    _refuse_second(here.repo, source, pull.head_ref, pull.base_ref, f"{source.owner.login}:{pull.head_ref}")
    issue.state, issue.closed_at, issue.closed_by = "open", None, None
    here.note(issue, "reopened")


@routes.get("/{pull_number}/commits")
async def list_pull_commits(here: Reads, pull_number: Number) -> Any:
    pull = here.pull(pull_number).pull
    assert pull is not None
    found = commits(here.repo.bare, "--reverse", f"{pull.base_sha}..{pull.head}")[:250]
    return [commit_json(here.world, here.repo, commit) for commit in page(here, found)]


@routes.get("/{pull_number}/files")
async def list_pull_files(here: Reads, pull_number: Number) -> Any:
    pull = here.pull(pull_number).pull
    assert pull is not None
    found = changed_files(here.repo.bare, pull.base_sha, pull.head)[:3000]
    start = here.repo.bare.git("merge-base", pull.base_sha, pull.head)
    return [file_json(here.world, here.repo, start, pull.head, file) for file in page(here, found)]


@routes.get("/{pull_number}/comments")
async def list_line_comments(here: Reads, pull_number: Number) -> Any:
    here.pull(pull_number)
    return []


@routes.get("/{pull_number}/merge", status_code=204)
async def is_merged(here: Annotated[Here, at("contents")], pull_number: Number) -> None:
    pull = here.pull(pull_number).pull
    if pull is None or pull.merged_at is None:
        raise not_found()


@routes.put("/{pull_number}/merge")
async def merge_pull(here: Merges, pull_number: Number, body: MergeWish) -> Any:
    issue = here.pull(pull_number)
    pull = issue.pull
    assert pull is not None
    if issue.state == "closed":
        raise Refusal(405, "Pull Request is not mergeable")
    if not re.fullmatch(r"[0-9a-f]{40}", body.sha or pull.head):
        raise invalid("PullRequest", "sha", "invalid")
    if body.sha and body.sha != pull.head:
        raise Refusal(409, "Head branch was modified. Review and try the merge again.")
    allowed = {"merge": "allow_merge_commit", "squash": "allow_squash_merge", "rebase": "allow_rebase_merge"}
    if not here.repo.settings.get(allowed[body.merge_method], True):
        raise Refusal(405, f"{body.merge_method.title()} merges are not allowed on this repository.")
    title = body.commit_title or f"Merge pull request #{pull_number} from {pull.head_ref}"
    message = "\n\n".join(part for part in (title, body.commit_message or issue.title) if part) + "\n"
    sha = merge(here.world, here.repo, issue, here.user, body.merge_method, message)
    pull.merged_at, pull.merged_by, pull.merge_commit = now(), here.user, sha
    close(issue)
    issue.closed_by = here.user
    here.note(issue, "merged")
    here.note(issue, "closed")
    source = here.world.repo(pull.head_repo)
    if here.repo.settings.get("delete_branch_on_merge") and source is here.repo:
        here.repo.bare.set_ref(f"refs/heads/{pull.head_ref}", None)
    return {"sha": sha, "merged": True, "message": "Pull Request successfully merged"}


@routes.post("/{pull_number}/requested_reviewers", status_code=201)
async def request_reviewers(here: Writes, pull_number: Number, body: Reviewers) -> Any:
    issue = here.pull(pull_number)
    pull = issue.pull
    assert pull is not None
    for login in body.reviewers:
        who = here.world.users.get(login.casefold())
        if who is None or here.world.role(here.repo, who) == "none":
            message = "Reviews may only be requested from collaborators. One or more of the users or teams"
            raise Refusal(
                422, f"{message} you specified is not a collaborator of the {here.repo.full_name} repository."
            )
        if who is issue.user:
            raise Refusal(422, "Review cannot be requested from pull request author.")
        if who.login not in pull.requested_users:
            pull.requested_users.append(who.login)
    pull.requested_teams += [slug for slug in body.team_reviewers if slug not in pull.requested_teams]
    return talk_shapes.pull(here.world, here.repo, issue, here.user)


def _viewer(here: Here) -> Any:
    return here.token.user if here.token else None
