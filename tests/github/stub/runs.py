"""Runs of workflows: started elsewhere, told here."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter

from tests.github.stub.access import Here, at, page
from tests.github.stub.actions import find_workflow
from tests.github.stub.commit_shapes import one_commit
from tests.github.stub.shapes import Json, html_url, minimal_repo, node_id, repo_url
from tests.github.stub.world import WorkflowRun

routes = APIRouter(prefix="/repos/{owner}/{repo}/actions/workflows/{workflow_id}/runs")


@routes.get("")
async def list_runs(
    here: Annotated[Here, at("actions")], workflow_id: str, status: str = "", branch: str = "", event: str = ""
) -> Any:
    """The newest first. `status` is a status or a conclusion."""
    workflow = find_workflow(here, workflow_id)
    found = [
        run
        for run in reversed(here.repo.runs)
        if run.path == workflow["path"]
        and status in ("", run.status, run.conclusion)
        and branch in ("", run.branch)
        and event in ("", run.event)
    ]
    shown = [_run(here, workflow, run) for run in page(here, found)]
    return {"total_count": len(found), "workflow_runs": shown}


def _run(here: Here, workflow: Json, run: WorkflowRun) -> Json:
    world, repo = here.world, here.repo
    url = f"{repo_url(world, repo)}/actions/runs/{run.id}"
    commit = one_commit(repo, run.sha)
    name, email, when = commit.author
    parts = ("jobs", "logs", "cancel", "rerun", "artifacts")
    return {
        "id": run.id,
        "node_id": node_id("WorkflowRun", run.id),
        "name": workflow["name"],
        "display_title": commit.message.partition("\n")[0],
        "path": run.path,
        "event": run.event,
        "status": run.status,
        "conclusion": run.conclusion,
        "head_branch": run.branch,
        "head_sha": run.sha,
        "head_commit": {
            "id": run.sha,
            "tree_id": commit.tree,
            "message": commit.message,
            "timestamp": when,
            "author": {"name": name, "email": email},
            "committer": {"name": commit.committer[0], "email": commit.committer[1]},
        },
        "run_number": run.number,
        "run_attempt": 1,
        "workflow_id": workflow["id"],
        "workflow_url": workflow["url"],
        "url": url,
        "html_url": f"{html_url(world, repo)}/actions/runs/{run.id}",
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "run_started_at": run.created_at,
        "pull_requests": [],
        "repository": minimal_repo(world, repo),
        "head_repository": minimal_repo(world, repo),
        "check_suite_url": f"{repo_url(world, repo)}/check-suites/{run.id}",
        **{f"{part}_url": f"{url}/{part}" for part in parts},
    }
