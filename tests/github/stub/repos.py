"""Repositories: their settings, branches, files, and the people who work on them."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Response

from tests.github.bare import Who
from tests.github.stub.access import Body, Here, at, page
from tests.github.stub.commit_shapes import commit_json, git_commit_json, one_commit, resolve
from tests.github.stub.refusals import Refusal, not_found
from tests.github.stub.rules import owners_text, rules_for
from tests.github.stub.shapes import Json, full_repo, html_url, repo_url, user
from tests.github.stub.world import Repo, World

routes = APIRouter(prefix="/repos/{owner}/{repo}")
Metadata = Annotated[Here, at("metadata")]
Contents = Annotated[Here, at("contents")]
WritesContents = Annotated[Here, at("contents", "write", "write")]


class ChangedRepo(Body):
    description: str | None = None
    default_branch: str | None = None
    private: bool | None = None
    allow_merge_commit: bool | None = None
    allow_squash_merge: bool | None = None
    allow_rebase_merge: bool | None = None
    allow_auto_merge: bool | None = None
    delete_branch_on_merge: bool | None = None


class Person(Body):
    name: str
    email: str


class NewContent(Body):
    message: str
    content: str
    sha: str | None = None
    branch: str | None = None
    author: Person | None = None
    committer: Person | None = None


@routes.get("")
async def get_repo(here: Metadata) -> Any:
    return full_repo(here.world, here.repo, here.token.user if here.token else None)


@routes.patch("")
async def change_repo(here: Annotated[Here, at("administration", "write", "admin")], body: ChangedRepo) -> Any:
    given = body.model_dump(exclude_unset=True)
    if "default_branch" in given:
        branch = given.pop("default_branch")
        if here.repo.bare.tip(f"refs/heads/{branch}") is None:
            message = (
                f"The branch {branch} was not found. Please push that ref first or create it via the Git Data API."
            )
            raise Refusal(422, "Validation Failed", [{"resource": "Repository", "code": "custom", "message": message}])
        here.repo.default_branch = branch
    here.repo.description = given.pop("description", here.repo.description)
    here.repo.private = given.pop("private", here.repo.private)
    here.repo.settings |= given
    return full_repo(here.world, here.repo, here.user)


# Branches


@routes.get("/branches")
async def list_branches(here: Contents, protected: bool | None = None) -> Any:
    names = [
        name
        for name in here.repo.bare.branches()
        if protected is None or rules_for(here.repo, name).protects is protected
    ]
    return [_short_branch(here.world, here.repo, name) for name in page(here, names)]


@routes.get("/branches/{branch:path}")
async def get_branch(here: Contents, branch: str) -> Any:
    if here.repo.bare.tip(f"refs/heads/{branch}") is None:
        raise Refusal(404, "Branch not found")
    short = _short_branch(here.world, here.repo, branch)
    rules = rules_for(here.repo, branch)
    protection = {
        "enabled": branch in here.repo.protection,
        "required_status_checks": {
            "enforcement_level": "non_admins" if rules.contexts else "off",
            "contexts": list(rules.contexts),
            "checks": [{"context": name, "app_id": None} for name in rules.contexts],
        },
    }
    links = {"self": f"{repo_url(here.world, here.repo)}/branches/{branch}"}
    links["html"] = f"{html_url(here.world, here.repo)}/tree/{branch}"
    commit = commit_json(here.world, here.repo, one_commit(here.repo, f"refs/heads/{branch}"))
    return short | {"commit": commit, "_links": links, "protection": protection}


def _short_branch(world: World, repo: Repo, name: str) -> Json:
    sha = repo.bare.tip(f"refs/heads/{name}")
    url = f"{repo_url(world, repo)}/branches/{name}/protection"
    return {
        "name": name,
        "commit": {"sha": sha, "url": f"{repo_url(world, repo)}/commits/{sha}"},
        "protected": rules_for(repo, name).protects,
        "protection_url": url,
    }


# Files


@routes.get("/contents/{path:path}")
async def get_contents(here: Contents, path: str, ref: str = "") -> Any:
    sha = _commit_for_contents(here.repo, ref)
    path = path.strip("/")
    bare = here.repo.bare
    kind = bare.run("cat-file", "-t", f"{sha}:{path}").stdout.decode().strip()
    if not kind:
        raise not_found()
    raw = "raw" in here.request.headers.get("accept", "")
    if kind == "blob":
        data = bare.raw("cat-file", "blob", f"{sha}:{path}")
        if raw:
            return Response(data, media_type="application/vnd.github.raw; charset=utf-8")
        its = bare.git("rev-parse", f"{sha}:{path}")
        shown = {"content": base64.encodebytes(data).decode(), "encoding": "base64"}
        if len(data) > 1_000_000:
            shown = {"content": "", "encoding": "none"}
        return _content(here, path, ref or here.repo.default_branch, "file", its, len(data)) | shown
    found = []
    for line in filter(None, bare.raw("ls-tree", "-z", "-l", f"{sha}:{path}").decode().split("\0")):
        meta, _, name = line.partition("\t")
        _, its_kind, its, size = meta.split()
        type = "dir" if its_kind == "tree" else "file"
        full = f"{path}/{name}".strip("/")
        length = int(size) if size != "-" else 0
        found.append(_content(here, full, ref or here.repo.default_branch, type, its, length))
    return found


def _commit_for_contents(repo: Repo, ref: str) -> str:
    try:
        return resolve(repo, ref or repo.default_branch)
    except Refusal:
        raise Refusal(404, f"No commit found for the ref {ref}") from None


def _content(here: Here, path: str, ref: str, type: str, sha: str, size: int) -> Json:
    at_path = quote(path)
    url = f"{repo_url(here.world, here.repo)}/contents/{at_path}?ref={ref}"
    kind = "trees" if type == "dir" else "blobs"
    git_url = f"{repo_url(here.world, here.repo)}/git/{kind}/{sha}"
    html = f"{html_url(here.world, here.repo)}/{'tree' if type == 'dir' else 'blob'}/{ref}/{at_path}"
    download = None if type == "dir" else f"{html_url(here.world, here.repo)}/raw/{ref}/{at_path}"
    return {
        "type": type,
        "name": path.rpartition("/")[2],
        "path": path,
        "sha": sha,
        "size": size,
        "url": url,
        "git_url": git_url,
        "html_url": html,
        "download_url": download,
        "_links": {"self": url, "git": git_url, "html": html},
    }


@routes.put("/contents/{path:path}")
async def put_contents(here: WritesContents, path: str, body: NewContent) -> Any:
    bare, branch = here.repo.bare, body.branch or here.repo.default_branch
    if bare.tip(f"refs/heads/{branch}") is None:
        raise Refusal(404, f"Branch {branch} not found")
    rules = rules_for(here.repo, branch)
    if rules.approvals is not None or rules.contexts:
        raise Refusal(409, "Repository rule violations found\n\nChanges must be made through a pull request.\n\n")
    try:
        data = base64.b64decode(body.content, validate=True)
    except binascii.Error:
        raise Refusal(422, "content is not valid Base64") from None
    old = bare.tip(f"refs/heads/{branch}:{path}")
    if old and body.sha is None:
        raise Refusal(422, 'Invalid request.\n\n"sha" wasn\'t supplied.')
    if old != body.sha:
        raise Refusal(409, f"{path} does not match {body.sha}")
    by = body.author or Person(name=here.user.name, email=here.user.email)
    sha = bare.commit(branch, {path: data}, body.message, Who(by.name, by.email))
    here.response.status_code = 200 if old else 201
    its = bare.git("rev-parse", f"{sha}:{path}")
    return {
        "content": _content(here, path, branch, "file", its, len(data)),
        "commit": git_commit_json(here.world, here.repo, sha),
    }


@routes.get("/codeowners/errors")
async def codeowners_errors(here: Contents, ref: str = "") -> Any:
    path, text = owners_text(here.repo.bare, ref or here.repo.default_branch)
    if not path:
        raise not_found()
    errors = []
    for number, line in enumerate(text.splitlines(), start=1):
        for owner in line.partition("#")[0].split()[1:]:
            if not _is_known_owner(here, owner):
                suggestion = f"make sure {owner} exists and has write access to the repository"
                errors.append(
                    {
                        "line": number,
                        "column": line.index(owner) + 1,
                        "kind": "Unknown owner",
                        "source": line,
                        "suggestion": suggestion,
                        "message": f"Unknown owner on line {number}: {suggestion}",
                        "path": path,
                    }
                )
    return {"errors": errors}


def _is_known_owner(here: Here, owner: str) -> bool:
    name = owner.removeprefix("@").casefold()
    org, slash, slug = name.partition("/")
    if slash:
        team = here.world.teams.get((org, slug))
        role = team.roles.get(here.repo.full_name.casefold(), "none") if team else "none"
    elif owner.startswith("@"):
        who = here.world.users.get(name)
        role = here.world.role(here.repo, who) if who else "none"
    else:
        who = here.world.by_email(name)
        role = here.world.role(here.repo, who) if who else "none"
    return role in ("write", "maintain", "admin")


# People


@routes.get("/collaborators")
async def list_collaborators(here: Annotated[Here, at("metadata", "read", "write")], permission: str = "") -> Any:
    people = [who for who in here.world.users.values() if who.type != "Organization"]
    roles = [(who, here.world.role(here.repo, who)) for who in people if who.login.casefold() in here.repo.roles]
    return [user(here.world, who) | _rights(role) for who, role in page(here, roles) if permission in ("", role)]


@routes.get("/collaborators/{username}/permission")
async def permission_of(here: Metadata, username: str) -> Any:
    here.need_role("read")
    who = here.world.users.get(username.casefold())
    if who is None:
        raise not_found()
    role = here.world.role(here.repo, who)
    old = {"maintain": "write", "triage": "read"}.get(role, role)
    return {"permission": old, "role_name": role, "user": user(here.world, who) | _rights(role)}


def _rights(role: str) -> Json:
    order = ("none", "read", "triage", "write", "maintain", "admin")
    levels = {"pull": "read", "triage": "triage", "push": "write", "maintain": "maintain", "admin": "admin"}
    return {
        "permissions": {name: order.index(role) >= order.index(need) for name, need in levels.items()},
        "role_name": role,
    }
