"""Commits, their statuses, and comparisons."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter

from tests.github.stub.access import Body, Here, at, page
from tests.github.stub.commit_shapes import commit_json, commit_with_files, file_json, one_commit, resolve
from tests.github.stub.diffs import changed_files, commits
from tests.github.stub.refusals import Refusal, custom, not_found
from tests.github.stub.shapes import Json, html_url, minimal_repo, node_id, repo_url, user
from tests.github.stub.talk_shapes import pull
from tests.github.stub.world import CommitStatus, Repo, World

routes = APIRouter(prefix="/repos/{owner}/{repo}")
Contents = Annotated[Here, at("contents")]
Statuses = Annotated[Here, at("statuses")]


class NewStatus(Body):
    state: Literal["error", "failure", "pending", "success"]
    context: str = "default"
    description: str | None = None
    target_url: str | None = None


# Commits


@routes.get("/commits")
async def list_commits(here: Contents, sha: str = "", path: str = "", author: str = "") -> Any:
    start = resolve(here.repo, sha or here.repo.default_branch)
    found = commits(here.repo.bare, start, *([f"--author={author}"] if author else []), "--", *([path] if path else []))
    return [commit_json(here.world, here.repo, commit) for commit in page(here, found)]


@routes.get("/commits/{ref:path}/status")
async def combined_status(here: Statuses, ref: str) -> Any:
    sha = resolve(here.repo, ref)
    newest = {status.context: status for status in here.repo.statuses if status.sha == sha}
    states = {status.state for status in newest.values()}
    state = "failure" if states & {"failure", "error"} else "pending" if states != {"success"} else "success"
    url = f"{repo_url(here.world, here.repo)}/commits/{sha}"
    found = page(here, [*reversed(newest.values())])
    return {
        "state": state,
        "sha": sha,
        "total_count": len(newest),
        "statuses": [_status(here.world, here.repo, status, short=True) for status in found],
        "repository": minimal_repo(here.world, here.repo),
        "commit_url": url,
        "url": f"{url}/status",
    }


@routes.get("/commits/{ref:path}/statuses")
async def list_statuses(here: Statuses, ref: str) -> Any:
    sha = resolve(here.repo, ref)
    found = [status for status in reversed(here.repo.statuses) if status.sha == sha]
    return [_status(here.world, here.repo, status) for status in page(here, found)]


@routes.post("/statuses/{sha}", status_code=201)
async def create_status(here: Annotated[Here, at("statuses", "write", "write")], sha: str, body: NewStatus) -> Any:
    if here.repo.bare.commit_at(sha) != sha:
        raise Refusal(422, f"No commit found for SHA: {sha}")
    if len(body.description or "") > 140:
        raise custom("Status", "description is too long (maximum is 140 characters)")
    # Contexts are told apart whatever their case.
    known = (status.context for status in here.repo.statuses)
    context = next((name for name in known if name.casefold() == body.context.casefold()), body.context)
    made = CommitStatus(here.world.next_id(), sha, body.state, context, body.description, body.target_url, here.user)
    here.repo.statuses.append(made)
    return _status(here.world, here.repo, made)


def _status(world: World, repo: Repo, status: CommitStatus, *, short: bool = False) -> Json:
    answer = {
        "id": status.id,
        "node_id": node_id("StatusContext", status.id),
        "url": f"{repo_url(world, repo)}/statuses/{status.sha}",
        "avatar_url": f"{world.base}/avatars/{status.creator.id}",
        "state": status.state,
        "context": status.context,
        "description": status.description,
        "target_url": status.target_url,
        "created_at": status.created_at,
        "updated_at": status.created_at,
    }
    return answer if short else answer | {"creator": user(world, status.creator)}


@routes.get("/commits/{commit_sha}/pulls")
async def pulls_of_commit(here: Annotated[Here, at("pull_requests")], commit_sha: str) -> Any:
    sha = resolve(here.repo, commit_sha)
    found = [
        issue
        for issue in here.repo.issues.values()
        if issue.pull
        and (
            sha in (issue.pull.head, issue.pull.merge_commit)
            or (
                here.repo.bare.is_ancestor(sha, issue.pull.head)
                and not here.repo.bare.is_ancestor(sha, issue.pull.base_sha)
            )
        )
    ]
    viewer = here.token.user if here.token else None
    return [pull(here.world, here.repo, issue, viewer) for issue in page(here, found)]


@routes.get("/commits/{ref:path}")
async def get_commit(here: Contents, ref: str) -> Any:
    return commit_with_files(here.world, here.repo, resolve(here.repo, ref))


# Comparing


@routes.get("/compare/{basehead:path}")
async def compare(here: Contents, basehead: str) -> Any:
    base, dots, head = basehead.partition("...")
    if not dots:
        raise not_found()
    one, other = resolve(here.repo, base), resolve(here.repo, head.rpartition(":")[2])
    bare = here.repo.bare
    start = bare.git("merge-base", one, other)
    ahead, behind = commits(bare, "--reverse", f"{one}..{other}"), commits(bare, f"{other}..{one}")
    status = "diverged" if ahead and behind else "ahead" if ahead else "behind" if behind else "identical"
    url, html = (f"{root(here.world, here.repo)}/compare/{basehead}" for root in (repo_url, html_url))
    files = changed_files(bare, one, other)[:300]
    return {
        "url": url,
        "html_url": html,
        "permalink_url": html,
        "diff_url": f"{html}.diff",
        "patch_url": f"{html}.patch",
        "base_commit": commit_json(here.world, here.repo, one_commit(here.repo, one)),
        "merge_base_commit": commit_json(here.world, here.repo, one_commit(here.repo, start)),
        "status": status,
        "ahead_by": len(ahead),
        "behind_by": len(behind),
        "total_commits": len(ahead),
        "commits": [commit_json(here.world, here.repo, commit) for commit in page(here, ahead)],
        "files": [file_json(here.world, here.repo, start, other, file) for file in files],
    }
