"""Accounts, Apps, teams, and how many calls are left."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request

from tests.github.stub import shapes
from tests.github.stub.access import Body, Here, at, page
from tests.github.stub.refusals import Refusal, not_found
from tests.github.stub.world import App, Team, Token, World

routes = APIRouter()
Anybody = Annotated[Here, at("metadata")]
Members = Annotated[Here, at("members")]
LIMIT = 5000


class Wish(Body):
    repositories: list[str] | None = None
    repository_ids: list[int] | None = None
    permissions: dict[str, Literal["read", "write", "admin"]] | None = None


@routes.get("/user")
async def own_account(here: Anybody) -> Any:
    if here.user and here.token and here.token.kind == "installation":
        raise Refusal(403, "Resource not accessible by integration")
    return shapes.own_user(here.world, here.user)


@routes.get("/users/{username}")
async def account(here: Anybody, username: str) -> Any:
    found = here.world.users.get(username.casefold())
    if found is None:
        raise not_found()
    return shapes.full_user(here.world, found)


@routes.get("/rate_limit")
async def rate_limit(here: Anybody) -> Any:
    remaining = here.token.remaining if here.token else 60
    rate = {"limit": LIMIT, "remaining": remaining, "reset": int(time.time()) + 3600, "used": LIMIT - remaining}
    return {"resources": {"core": rate, "search": rate}, "rate": rate}


# Teams


@routes.get("/orgs/{org}/teams/{team_slug}")
async def get_team(here: Members, org: str, team_slug: str) -> Any:
    team = _team(here, org, team_slug)
    counts = {"members_count": len(team.members), "repos_count": len(team.roles)}
    dates = {"created_at": shapes.EPOCH, "updated_at": shapes.EPOCH}
    return shapes.team(here.world, team) | counts | dates | {"organization": shapes.organization(here.world, team.org)}


@routes.get("/orgs/{org}/teams/{team_slug}/members")
async def team_members(here: Members, org: str, team_slug: str) -> Any:
    active = [login for login, state in _team(here, org, team_slug).members.items() if state == "active"]
    return [shapes.user(here.world, here.world.user(login)) for login in page(here, active)]


@routes.get("/orgs/{org}/teams/{team_slug}/memberships/{username}")
async def membership(here: Members, org: str, team_slug: str, username: str) -> Any:
    team = _team(here, org, team_slug)
    state = team.members.get(username.casefold())
    if state is None:
        raise not_found()
    url = f"{here.world.api}/orgs/{team.org}/teams/{team.slug}/memberships/{username}"
    return {"url": url, "role": "member", "state": state}


def _team(here: Here, org: str, slug: str) -> Team:
    found = here.world.teams.get((org.casefold(), slug.casefold()))
    if found is None or here.token is None:
        raise not_found()
    return found


# Apps. They sign in with a JSON web token of their own, good for these calls only.


async def _app(request: Request) -> App:
    import jwt

    world: World = request.app.state.world
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.casefold() != "bearer":
        raise Refusal(401, "A JSON web token could not be decoded")
    try:
        claims = jwt.decode(value, options={"verify_signature": False})
        found = world.apps[int(claims["iss"])]
        jwt.decode(value, found.public_key, algorithms=["RS256"], leeway=60)
    except (jwt.PyJWTError, KeyError, ValueError):
        raise Refusal(401, "A JSON web token could not be decoded") from None
    return found


ByApp = Annotated[App, Depends(_app)]


@routes.get("/app")
async def own_app(request: Request, app: ByApp) -> Any:
    return shapes.app(request.app.state.world, app)


@routes.get("/repos/{owner}/{repo}/installation")
async def installation_of_repo(request: Request, app: ByApp, owner: str, repo: str) -> Any:
    world: World = request.app.state.world
    slug = f"{owner}/{repo}".casefold()
    number = next((number for number, name in app.installations.items() if name == slug), None)
    if number is None:
        raise not_found()
    account = world.user(owner)
    url = f"{world.api}/app/installations/{number}"
    return {
        "id": number,
        "account": shapes.user(world, account),
        "app_id": app.id,
        "app_slug": app.slug,
        "target_id": account.id,
        "target_type": account.type,
        "permissions": dict(app.permissions),
        "events": [],
        "repository_selection": "selected",
        "single_file_name": None,
        "access_tokens_url": f"{url}/access_tokens",
        "repositories_url": f"{world.api}/installation/repositories",
        "html_url": f"{world.base}/settings/installations/{number}",
        "created_at": shapes.EPOCH,
        "updated_at": shapes.EPOCH,
        "suspended_by": None,
        "suspended_at": None,
    }


@routes.post("/app/installations/{installation_id}/access_tokens", status_code=201)
async def access_token(request: Request, app: ByApp, installation_id: int, body: Wish | None = None) -> Any:
    world: World = request.app.state.world
    slug = app.installations.get(installation_id)
    if slug is None:
        raise not_found()
    wanted: dict[str, Any] = (body.permissions if body else None) or dict(app.permissions)
    if any(app.permissions.get(name) not in (level, "write") for name, level in wanted.items()):
        raise Refusal(422, "The permissions requested are not granted to this installation.")
    token = Token(f"ghs_{secrets.token_hex(18)}", app.bot, "installation", wanted, "", frozenset({slug}))
    world.tokens[token.value] = token
    expires = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = {"token": token.value, "expires_at": expires, "permissions": wanted}
    return answer | {"repository_selection": "selected"}
