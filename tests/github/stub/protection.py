"""What guards branches: protection of one branch, and rulesets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from tests.github.stub.access import Body, Here, at, page
from tests.github.stub.refusals import Refusal, invalid, not_found
from tests.github.stub.rules import active_rules, checks_of, guard_pushes
from tests.github.stub.shapes import Json, html_url, node_id, repo_url
from tests.github.stub.world import Repo, World, now

routes = APIRouter(prefix="/repos/{owner}/{repo}")
Metadata = Annotated[Here, at("metadata")]
Admin = Annotated[Here, at("administration", "read", "admin")]
WritesAdmin = Annotated[Here, at("administration", "write", "admin")]


class Check(Body):
    context: str
    app_id: int | None = None


class RequiredChecks(Body):
    strict: bool
    contexts: list[str] = Field(default_factory=list)
    checks: list[Check] = Field(default_factory=list)


class RequiredReviews(Body):
    required_approving_review_count: int = 0
    dismiss_stale_reviews: bool = False
    require_code_owner_reviews: bool = False
    require_last_push_approval: bool = False


class Protection(Body):
    """The first four must be there, null or not: GitHub refuses a body without them."""

    required_status_checks: RequiredChecks | None
    enforce_admins: bool | None
    required_pull_request_reviews: RequiredReviews | None
    restrictions: dict[str, Any] | None
    required_linear_history: bool = False
    allow_force_pushes: bool | None = None
    allow_deletions: bool = False
    required_conversation_resolution: bool = False


class Ruleset(Body):
    name: str
    enforcement: Literal["disabled", "active", "evaluate"]
    target: Literal["branch", "tag", "push"] = "branch"
    bypass_actors: list[dict[str, Any]] = Field(default_factory=list)
    conditions: dict[str, Any] | None = None
    rules: list[dict[str, Any]] = Field(default_factory=list)


# Protection


@routes.get("/branches/{branch:path}/protection")
async def get_protection(here: Admin, branch: str) -> Any:
    return _protection(here.world, here.repo, branch)


@routes.put("/branches/{branch:path}/protection")
async def put_protection(here: WritesAdmin, branch: str, body: Protection) -> Any:
    if here.repo.bare.tip(f"refs/heads/{branch}") is None:
        raise Refusal(404, "Branch not found")
    if body.restrictions is not None:
        raise NotImplementedError("the stub knows no restrictions of who may push")
    here.repo.protection[branch] = body.model_dump()
    guard_pushes(here.repo)
    return _protection(here.world, here.repo, branch)


@routes.delete("/branches/{branch:path}/protection", status_code=204)
async def delete_protection(here: WritesAdmin, branch: str) -> None:
    if here.repo.protection.pop(branch, None) is None:
        raise Refusal(404, "Branch not protected")
    guard_pushes(here.repo)


def _protection(world: World, repo: Repo, branch: str) -> Json:
    given = repo.protection.get(branch)
    if given is None:
        raise Refusal(404, "Branch not protected")
    url = f"{repo_url(world, repo)}/branches/{branch}/protection"
    answer: Json = {
        "url": url,
        "enforce_admins": {"url": f"{url}/enforce_admins", "enabled": bool(given["enforce_admins"])},
        "required_signatures": {"url": f"{url}/required_signatures", "enabled": False},
        "block_creations": {"enabled": False},
        "lock_branch": {"enabled": False},
        "allow_fork_syncing": {"enabled": False},
    }
    switches = ("required_linear_history", "allow_force_pushes", "allow_deletions", "required_conversation_resolution")
    answer |= {name: {"enabled": bool(given[name])} for name in switches}
    if (checks := given["required_status_checks"]) is not None:
        names = checks_of(checks)
        answer["required_status_checks"] = {
            "url": f"{url}/required_status_checks",
            "contexts_url": f"{url}/required_status_checks/contexts",
            "strict": checks["strict"],
            "contexts": names,
            "checks": [{"context": name, "app_id": None} for name in names],
        }
    if (reviews := given["required_pull_request_reviews"]) is not None:
        answer["required_pull_request_reviews"] = {"url": f"{url}/required_pull_request_reviews", **reviews}
    return answer


# Rulesets


@routes.get("/rules/branches/{branch:path}")
async def rules_of_branch(here: Metadata, branch: str) -> Any:
    return page(here, active_rules(here.repo, branch))


@routes.get("/rulesets")
async def list_rulesets(here: Metadata) -> Any:
    short = ("bypass_actors", "conditions", "rules")
    found = page(here, here.repo.rulesets)
    return [{name: value for name, value in _ruleset(here, ruleset).items() if name not in short} for ruleset in found]


@routes.post("/rulesets", status_code=201)
async def create_ruleset(here: WritesAdmin, body: Ruleset) -> Any:
    if any(known["name"] == body.name for known in here.repo.rulesets):
        raise invalid("RepositoryRuleset", "name", "custom", "Name must be unique")
    made = body.model_dump() | {"id": here.world.next_id(), "created_at": now(), "updated_at": now()}
    here.repo.rulesets.append(made)
    guard_pushes(here.repo)
    return _ruleset(here, made)


@routes.get("/rulesets/{ruleset_id}")
async def get_ruleset(here: Metadata, ruleset_id: int) -> Any:
    return _ruleset(here, _find(here.repo, ruleset_id))


@routes.put("/rulesets/{ruleset_id}")
async def change_ruleset(here: WritesAdmin, ruleset_id: int, body: Ruleset) -> Any:
    found = _find(here.repo, ruleset_id)
    found |= body.model_dump() | {"updated_at": now()}
    guard_pushes(here.repo)
    return _ruleset(here, found)


@routes.delete("/rulesets/{ruleset_id}", status_code=204)
async def delete_ruleset(here: WritesAdmin, ruleset_id: int) -> None:
    here.repo.rulesets.remove(_find(here.repo, ruleset_id))
    guard_pushes(here.repo)


def _find(repo: Repo, number: int) -> dict[str, Any]:
    found = next((ruleset for ruleset in repo.rulesets if ruleset["id"] == number), None)
    if found is None:
        raise not_found()
    return found


def _ruleset(here: Here, found: dict[str, Any]) -> Json:
    """As the caller sees it: who may bypass is told to those who may change it."""
    world, repo = here.world, here.repo
    answer = dict(found) | {
        "source_type": "Repository",
        "source": repo.full_name,
        "node_id": node_id("RepositoryRuleset", found["id"]),
        "current_user_can_bypass": "never",
        "_links": {
            "self": {"href": f"{repo_url(world, repo)}/rulesets/{found['id']}"},
            "html": {"href": f"{html_url(world, repo)}/rules/{found['id']}"},
        },
    }
    if not here.has_role("admin"):
        del answer["bypass_actors"]
    return answer
