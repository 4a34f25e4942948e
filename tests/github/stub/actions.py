"""What Actions may do in a repository: permissions, runners, variables, secrets' names, environments, workflows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from tests.github.stub.access import Body, Here, at, page
from tests.github.stub.refusals import Refusal, not_found
from tests.github.stub.shapes import EPOCH, Json, html_url, node_id, repo_url
from tests.github.stub.world import now

routes = APIRouter(prefix="/repos/{owner}/{repo}")
Admin = Annotated[Here, at("administration", "read", "admin")]
WritesAdmin = Annotated[Here, at("administration", "write", "admin")]
Actions = Annotated[Here, at("actions")]
Variables = Annotated[Here, at("variables", "read", "write")]
WritesVariables = Annotated[Here, at("variables", "write", "write")]
DEFAULTS: dict[str, Json] = {
    "permissions": {"enabled": True, "allowed_actions": "all", "sha_pinning_required": False},
    "workflow": {"default_workflow_permissions": "read", "can_approve_pull_request_reviews": False},
    "selected-actions": {"github_owned_allowed": True, "verified_allowed": False, "patterns_allowed": []},
    "fork-pr-contributor-approval": {"approval_policy": "first_time_contributors"},
}
"""What a new repository has."""


class Permissions(Body):
    enabled: bool
    allowed_actions: Literal["all", "local_only", "selected"] | None = None
    sha_pinning_required: bool | None = None


class WorkflowPermissions(Body):
    default_workflow_permissions: Literal["read", "write"] | None = None
    can_approve_pull_request_reviews: bool | None = None


class Variable(Body):
    name: str
    value: str


class ChangedVariable(Body):
    name: str | None = None
    value: str | None = None


class Dispatch(Body):
    ref: str
    inputs: dict[str, Any] = Field(default_factory=dict)


class RepositoryDispatch(Body):
    event_type: str
    client_payload: dict[str, Any] = Field(default_factory=dict)


def _setting(here: Here, name: str) -> Json:
    return {**DEFAULTS[name], **here.repo.actions.get(name, {})}


def _set(here: Here, name: str, body: Body) -> None:
    here.repo.actions[name] = _setting(here, name) | body.model_dump(exclude_none=True)


@routes.get("/actions/permissions")
async def get_permissions(here: Admin) -> Any:
    answer = _setting(here, "permissions")
    if not answer["enabled"]:
        return {"enabled": False}
    if answer["allowed_actions"] == "selected":
        answer["selected_actions_url"] = f"{repo_url(here.world, here.repo)}/actions/permissions/selected-actions"
    return answer


@routes.put("/actions/permissions", status_code=204)
async def put_permissions(here: WritesAdmin, body: Permissions) -> None:
    _set(here, "permissions", body)


@routes.get("/actions/permissions/workflow")
async def get_workflow_permissions(here: Admin) -> Any:
    return _setting(here, "workflow")


@routes.put("/actions/permissions/workflow", status_code=204)
async def put_workflow_permissions(here: WritesAdmin, body: WorkflowPermissions) -> None:
    _set(here, "workflow", body)


@routes.get("/actions/permissions/selected-actions")
async def get_selected_actions(here: Admin) -> Any:
    if _setting(here, "permissions")["allowed_actions"] != "selected":
        raise Refusal(409, "Selected actions are not enabled for this repository.")
    return _setting(here, "selected-actions")


@routes.get("/actions/permissions/fork-pr-contributor-approval")
async def get_fork_approval(here: Admin) -> Any:
    return _setting(here, "fork-pr-contributor-approval")


@routes.get("/actions/runners")
async def list_runners(here: Admin, name: str = "") -> Any:
    found = [runner for runner in here.repo.actions.get("runners", []) if name in ("", runner["name"])]
    return {"total_count": len(found), "runners": page(here, found)}


# Variables and secrets


@routes.get("/actions/variables")
async def list_variables(here: Variables) -> Any:
    found = page(here, sorted(here.repo.variables), largest=30)
    shown = [_variable(here, name) for name in found]
    return {"total_count": len(here.repo.variables), "variables": shown}


@routes.post("/actions/variables", status_code=201)
async def create_variable(here: WritesVariables, body: Variable) -> Any:
    if body.name.upper() in here.repo.variables:
        raise Refusal(409, "Already exists - Variable already exists")
    here.repo.variables[body.name.upper()] = (body.value, now())
    return {}


@routes.get("/actions/variables/{name}")
async def get_variable(here: Variables, name: str) -> Any:
    return _variable(here, name.upper())


@routes.patch("/actions/variables/{name}", status_code=204)
async def change_variable(here: WritesVariables, name: str, body: ChangedVariable) -> None:
    old = _variable(here, name.upper())
    del here.repo.variables[name.upper()]
    here.repo.variables[(body.name or name).upper()] = (
        body.value if body.value is not None else old["value"],
        now(),
    )


def _variable(here: Here, name: str) -> Json:
    if name not in here.repo.variables:
        raise not_found()
    value, at_time = here.repo.variables[name]
    return {"name": name, "value": value, "created_at": at_time, "updated_at": at_time}


@routes.get("/actions/secrets")
async def list_secrets(here: Annotated[Here, at("secrets", "read", "write")]) -> Any:
    found = [_dated(name, when) for name, when in sorted(here.repo.secrets.items())]
    return {"total_count": len(found), "secrets": page(here, found)}


def _dated(name: str, when: str) -> Json:
    return {"name": name, "created_at": when, "updated_at": when}


@routes.get("/environments")
async def list_environments(here: Actions) -> Any:
    found = [_environment(here, name) for name in here.repo.environments]
    return {"total_count": len(found), "environments": page(here, found)}


@routes.get("/environments/{environment_name}")
async def get_environment(here: Actions, environment_name: str) -> Any:
    if environment_name not in here.repo.environments:
        raise not_found()
    return _environment(here, environment_name)


def _environment(here: Here, name: str) -> Json:
    given = here.repo.environments[name]
    number = sum(name.encode())
    return {
        "id": number,
        "node_id": node_id("Environment", number),
        "name": name,
        "url": f"{repo_url(here.world, here.repo)}/environments/{name}",
        "html_url": f"{html_url(here.world, here.repo)}/deployments/activity_log?environments_filter={name}",
        "created_at": EPOCH,
        "updated_at": EPOCH,
        "protection_rules": [],
        "deployment_branch_policy": None,
        **given,
    }


# Workflows


@routes.get("/actions/workflows")
async def list_workflows(here: Actions) -> Any:
    found = _workflows(here)
    return {"total_count": len(found), "workflows": page(here, found)}


@routes.get("/actions/workflows/{workflow_id}")
async def get_workflow(here: Actions, workflow_id: str) -> Any:
    return find_workflow(here, workflow_id)


@routes.post("/actions/workflows/{workflow_id}/dispatches", status_code=204)
async def dispatch(here: Annotated[Here, at("actions", "write", "write")], workflow_id: str, body: Dispatch) -> None:
    found = find_workflow(here, workflow_id)
    text = here.repo.bare.file(here.repo.default_branch, found["path"]) or b""
    if here.repo.bare.commit_at(body.ref) is None:
        raise Refusal(422, f"No ref found for: {body.ref}")
    if b"workflow_dispatch" not in text:
        raise Refusal(422, "Workflow does not have 'workflow_dispatch' trigger")
    here.repo.dispatches.append({"workflow": found["path"], "ref": body.ref, "inputs": body.inputs})


@routes.post("/dispatches", status_code=204)
async def repository_dispatch(
    here: Annotated[Here, at("contents", "write", "write")], body: RepositoryDispatch
) -> None:
    here.repo.dispatches.append({"event_type": body.event_type, "client_payload": body.client_payload})


def find_workflow(here: Here, wanted: str) -> Json:
    """By number or by file name."""
    for found in _workflows(here):
        if wanted in (str(found["id"]), found["path"].rpartition("/")[2]):
            return found
    raise not_found()


def _workflows(here: Here) -> list[Json]:
    folder = ".github/workflows/"
    names = here.repo.bare.git("ls-tree", "--name-only", here.repo.default_branch, folder).splitlines()
    found = []
    for path in names:
        number = sum(path.encode())
        name = path.rpartition("/")[2]
        url = f"{repo_url(here.world, here.repo)}/actions/workflows/{number}"
        html = html_url(here.world, here.repo)
        found.append(
            {
                "id": number,
                "node_id": node_id("Workflow", number),
                "name": name,
                "path": path,
                "state": "active",
                "url": url,
                "html_url": f"{html}/blob/{here.repo.default_branch}/{path}",
                "badge_url": f"{html}/workflows/{name}/badge.svg",
                "created_at": EPOCH,
                "updated_at": EPOCH,
            }
        )
    return found
