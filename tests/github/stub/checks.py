"""Check runs: what an App says about a commit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from tests.github.stub.access import Body, Here, at, page
from tests.github.stub.commit_shapes import resolve
from tests.github.stub.refusals import Refusal, custom, not_found
from tests.github.stub.shapes import Json, app, html_url, node_id, repo_url
from tests.github.stub.world import Repo, World, now

routes = APIRouter(prefix="/repos/{owner}/{repo}")
Checks = Annotated[Here, at("checks")]
WritesChecks = Annotated[Here, at("checks", "write", "write")]
Conclusion = Literal["action_required", "cancelled", "failure", "neutral", "success", "skipped", "stale", "timed_out"]


class Annotation(Body):
    path: str
    start_line: int
    end_line: int
    annotation_level: Literal["notice", "warning", "failure"]
    message: str
    title: str | None = None
    raw_details: str | None = None


class Output(Body):
    title: str
    summary: str
    text: str | None = None
    annotations: list[Annotation] = Field(default_factory=list)


class ChangedCheck(Body):
    name: str | None = None
    status: Literal["queued", "in_progress", "completed"] | None = None
    conclusion: Conclusion | None = None
    output: Output | None = None
    details_url: str | None = None
    external_id: str | None = None
    started_at: str | None = None
    completed_at: str | None = None


class NewCheck(ChangedCheck):
    name: str
    head_sha: str


@routes.get("/commits/{ref:path}/check-runs")
async def list_checks(here: Checks, ref: str, check_name: str = "", status: str = "", filter: str = "latest") -> Any:
    sha = resolve(here.repo, ref)
    runs = [run for run in here.repo.checks if run["head_sha"] == sha]
    if filter == "latest":
        runs = list({run["name"]: run for run in runs}.values())
    runs = [run for run in runs if check_name in ("", run["name"]) and status in ("", run["status"])]
    found = page(here, runs)
    return {"total_count": len(runs), "check_runs": [_check(here.world, here.repo, run) for run in found]}


@routes.post("/check-runs", status_code=201)
async def create_check(here: WritesChecks, body: NewCheck) -> Any:
    if here.token is None or here.token.kind != "installation":
        raise Refusal(403, "You must authenticate via a GitHub App.")
    if here.repo.bare.commit_at(body.head_sha) != body.head_sha:
        raise Refusal(422, f"No commit found for SHA: {body.head_sha}")
    run: dict[str, Any] = {
        "id": here.world.next_id(),
        "head_sha": body.head_sha,
        "name": body.name,
        "status": "queued",
        "conclusion": None,
        "details_url": None,
        "external_id": "",
        "started_at": now(),
        "completed_at": None,
        "output": {"title": None, "summary": None, "text": None},
        "annotations": [],
    }
    _change(run, body)
    here.repo.checks.append(run)
    return _check(here.world, here.repo, run)


@routes.get("/check-runs/{check_run_id}")
async def get_check(here: Checks, check_run_id: int) -> Any:
    return _check(here.world, here.repo, _find(here, check_run_id))


@routes.patch("/check-runs/{check_run_id}")
async def change_check(here: WritesChecks, check_run_id: int, body: ChangedCheck) -> Any:
    run = _find(here, check_run_id)
    _change(run, body)
    return _check(here.world, here.repo, run)


@routes.get("/check-runs/{check_run_id}/annotations")
async def list_annotations(here: Checks, check_run_id: int) -> Any:
    run = _find(here, check_run_id)
    link = f"{html_url(here.world, here.repo)}/blob/{run['head_sha']}/"
    places = {"start_column": None, "end_column": None}
    return [{**given, **places, "blob_href": link + given["path"]} for given in page(here, run["annotations"])]


def _change(run: dict[str, Any], body: ChangedCheck) -> None:
    given = body.model_dump(exclude_unset=True)
    output = given.pop("output", None)
    given.pop("head_sha", None)
    if output:
        notes = output.pop("annotations", [])
        if len(notes) > 50:
            raise custom("CheckRun", "Annotations exceeds a maximum quantity of 50")
        if len(output["summary"]) > 65_535:
            raise custom("CheckRun", "Summary exceeds a maximum length of 65535")
        run["annotations"] += [{"title": None, "raw_details": None} | note for note in notes]
        run["output"] = {"text": None} | output
    run |= given
    if run["conclusion"]:
        run["status"], run["completed_at"] = "completed", run["completed_at"] or now()
    elif run["status"] == "completed":
        raise custom("CheckRun", "conclusion is required when status is completed")


def _check(world: World, repo: Repo, run: dict[str, Any]) -> Json:
    url = f"{repo_url(world, repo)}/check-runs/{run['id']}"
    html = f"{html_url(world, repo)}/runs/{run['id']}"
    owner = next(iter(world.apps.values()), None)
    shown = {key: value for key, value in run.items() if key != "annotations"}
    return shown | {
        "node_id": node_id("CheckRun", run["id"]),
        "url": url,
        "html_url": html,
        "details_url": run["details_url"] or html,
        "output": {
            **run["output"],
            "annotations_count": len(run["annotations"]),
            "annotations_url": f"{url}/annotations",
        },
        "check_suite": {"id": int(run["head_sha"][:8], 16)},
        "app": app(world, owner) if owner else None,
        "pull_requests": [],
    }


def _find(here: Here, number: int) -> dict[str, Any]:
    found = next((run for run in here.repo.checks if run["id"] == number), None)
    if found is None:
        raise not_found()
    return found
