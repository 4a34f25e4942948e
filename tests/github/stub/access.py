"""Who calls, on which repository, and whether they may: what every endpoint asks for first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Request, Response
from pydantic import BaseModel, ConfigDict

from tests.github.stub.refusals import Refusal, not_found
from tests.github.stub.sync import follow_git
from tests.github.stub.world import ROLES, Issue, IssueEvent, Repo, Token, User, World

Number = Annotated[int, Path(ge=1)]
Item = TypeVar("Item")


class Body(BaseModel):
    """A request's body. A field that the stub does not know is refused: GitHub would pass it over, unseen."""

    model_config = ConfigDict(extra="forbid", strict=True)


@dataclass(slots=True)
class Here:
    """One call: the world, the caller, and the repository that the path names."""

    world: World
    request: Request
    response: Response
    token: Token | None
    the_repo: Repo | None

    @property
    def repo(self) -> Repo:
        if self.the_repo is None:
            raise not_found()
        return self.the_repo

    @property
    def user(self) -> User:
        if self.token is None:
            raise Refusal(401, "Requires authentication")
        return self.token.user

    def has_role(self, role: str) -> bool:
        """Whether the caller may do what people with a role may. An App's bot has rights and no role."""
        if self.token and self.token.kind == "installation":
            return allows(self.token, *_RIGHTS[role])
        return has_role(self.world, self.repo, self.token.user if self.token else None, role)

    def need_role(self, role: str) -> None:
        """A person without the role gets 403."""
        if not self.has_role(role):
            what = "admin rights" if role == "admin" else "write access" if role in ("write", "maintain") else "access"
            raise Refusal(403, f"Must have {what} to Repository.")

    def issue(self, number: int) -> Issue:
        found = self.repo.issues.get(number)
        if found is None:
            raise not_found()
        return found

    def note(self, issue: Issue, event: str, label: str | None = None) -> None:
        """Write down what the caller did to an issue."""
        issue.events.append(IssueEvent(self.world.next_id(), event, self.user, label))

    def pull(self, number: int) -> Issue:
        found = self.issue(number)
        if found.pull is None:
            raise not_found()
        return found


_RIGHTS = {
    "read": ("metadata", "read"),
    "triage": ("issues", "write"),
    "write": ("contents", "write"),
    "maintain": ("administration", "write"),
    "admin": ("administration", "read"),
}
"""What of an installation's permissions stands for a person's role."""


def has_role(world: World, repo: Repo, user: User | None, role: str) -> bool:
    return ROLES.index(world.role(repo, user)) >= ROLES.index(role)


def token_of(world: World, authorization: str) -> Token | None:
    """The token of an Authorization header; 401 for one that is not known."""
    kind, _, value = authorization.partition(" ")
    if not authorization:
        return None
    found = world.tokens.get(value.strip()) if kind.casefold() in ("bearer", "token") else None
    if found is None:
        raise Refusal(401, "Bad credentials")
    if found.remaining <= 0:
        raise Refusal(403, f"API rate limit exceeded for user ID {found.user.id}.")
    return found


def allows(token: Token, scope: str, level: str) -> bool:
    """Whether the token's own permissions hold this one. A classic token has all that its user has."""
    if token.permissions is None or scope == "metadata":
        return True
    order = ("", "read", "write", "admin")
    return order.index(token.permissions.get(scope, "")) >= order.index(level)


def check_permission(token: Token | None, scopes: Sequence[str], level: str) -> None:
    """Whether the token may, by any one of `scopes`."""
    if token is None:
        if level != "read":
            raise Refusal(401, "Requires authentication")
        return
    if not any(allows(token, scope, level) for scope in scopes):
        who = "integration" if token.kind == "installation" else "personal access token"
        accepted = {"X-Accepted-GitHub-Permissions": "; ".join(f"{scope}={level}" for scope in scopes)}
        raise Refusal(403, f"Resource not accessible by {who}", headers=accepted)


def sees(world: World, repo: Repo, token: Token | None) -> bool:
    """Whether the repository is there at all for a token."""
    if not repo.private:
        return True
    if token is None or (token.repositories is not None and repo.full_name.casefold() not in token.repositories):
        return False
    return token.kind == "installation" or has_role(world, repo, token.user, "read")


def at(scope: str, level: str = "read", role: str = "read", *, of_pulls: bool = False) -> Any:
    """The dependency of an endpoint: the call, once the caller may make it.

    `of_pulls`: where the issue that the path names is a pull request, the permission for those does as well. So it is
    for comments, labels and events, and not for the issue itself.
    """

    async def here(request: Request, response: Response) -> Here:
        world: World = request.app.state.world
        token = token_of(world, request.headers.get("authorization", ""))
        parts = request.path_params
        repo = None
        if "repo" in parts:
            repo = world.repo(f"{parts['owner']}/{parts['repo']}")
            if repo is None or not sees(world, repo, token):
                raise not_found()
            follow_git(world, repo)
        scopes = [scope, "pull_requests"] if of_pulls and repo and _names_pull(repo, parts) else [scope]
        check_permission(token, scopes, level)
        found = Here(world, request, response, token, repo)
        if repo is not None and not (token and token.kind == "installation"):  # its permission was all there is to ask
            found.need_role(role)
        return found

    return Depends(here)


def _names_pull(repo: Repo, parts: Mapping[str, Any]) -> bool:
    """Whether a path's issue, or the one that its comment is on, is a pull request."""
    number, comment = (str(parts.get(name, "")) for name in ("issue_number", "comment_id"))
    return any(
        issue.pull is not None
        and (str(issue.number) == number or any(str(said.id) == comment for said in issue.comments))
        for issue in repo.issues.values()
    )


# Paging


def page(here: Here, items: list[Item], largest: int = 100) -> list[Item]:
    """One page of a list, with the Link header; `per_page` above 100 means 100, as on GitHub."""
    query = here.request.query_params
    size = min(max(_number(query.get("per_page"), 30), 1), largest)
    at_page = max(_number(query.get("page"), 1), 1)
    last = max(1, -(-len(items) // size))
    links: dict[str, int] = {}
    if at_page > 1:
        links |= {"prev": at_page - 1, "first": 1}
    if at_page < last:
        links |= {"next": at_page + 1, "last": last}
    if links:
        path = here.request.url.path
        urls = {
            rel: here.request.url.replace(
                path=path, query="&".join([*_kept(here.request), f"per_page={size}", f"page={n}"])
            )
            for rel, n in links.items()
        }
        here.response.headers["Link"] = ", ".join(f'<{_on(here, str(url))}>; rel="{rel}"' for rel, url in urls.items())
    return items[(at_page - 1) * size : at_page * size]


def _kept(request: Request) -> list[str]:
    pairs = [pair for pair in request.url.query.split("&") if pair]
    return [pair for pair in pairs if pair.partition("=")[0] not in ("page", "per_page")]


def _on(here: Here, url: str) -> str:
    """The URL on the host that all others use, whatever name the caller reached us by."""
    return here.world.base + "/" + url.split("/", 3)[3]


def _number(value: str | None, default: int) -> int:
    return int(value) if value and value.isdigit() else default
