"""Issues, their comments and their labels; a pull request is an issue too."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from tests.github.stub import talk_shapes
from tests.github.stub.access import Body, Here, Number, at, page
from tests.github.stub.refusals import check_length, invalid, not_found
from tests.github.stub.shapes import known_label, node_id, user
from tests.github.stub.sync import close
from tests.github.stub.world import Comment, Issue, now

routes = APIRouter(prefix="/repos/{owner}/{repo}")
Reads = Annotated[Here, at("issues")]
Writes = Annotated[Here, at("issues", "write")]
ReadsTalk = Annotated[Here, at("issues", of_pulls=True)]
WritesTalk = Annotated[Here, at("issues", "write", of_pulls=True)]
LIMIT = 65_536


class NewIssue(Body):
    title: str
    body: str | None = None
    labels: list[str] = Field(default_factory=list)
    assignees: list[str] = Field(default_factory=list)


class ChangedIssue(Body):
    title: str | None = None
    body: str | None = None
    state: Literal["open", "closed"] | None = None
    state_reason: Literal["completed", "not_planned", "reopened"] | None = None
    labels: list[str] | None = None
    assignees: list[str] | None = None


class Text(Body):
    body: str


class NewReaction(Body):
    content: Literal["+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes"]


@routes.get("/issues")
async def list_issues(
    here: Reads,
    state: Literal["open", "closed", "all"] = "open",
    labels: str = "",
    creator: str = "",
    since: str = "",
    sort: Literal["created", "updated", "comments"] = "created",
    direction: Literal["asc", "desc"] = "desc",
) -> Any:
    wanted = {name for name in labels.split(",") if name}
    found = [
        issue
        for issue in here.repo.issues.values()
        if state in ("all", issue.state)
        and wanted <= set(issue.labels)
        and (not creator or issue.user.login.casefold() == creator.casefold())
        and issue.updated_at >= since
    ]
    found.sort(key=lambda issue: (getattr(issue, f"{sort}_at", len(issue.comments)), issue.number))
    if direction == "desc":
        found.reverse()
    return [talk_shapes.issue(here.world, here.repo, issue) for issue in page(here, found)]


@routes.post("/issues", status_code=201)
async def create_issue(here: Writes, body: NewIssue) -> Any:
    if not body.title.strip():
        raise invalid("Issue", "title", "missing_field")
    check_length("Issue", "title", body.title, 256)
    check_length("Issue", "body", body.body, LIMIT)
    issue = Issue(here.repo.next_number(), here.world.next_id(), body.title, body.body, here.user)
    if here.has_role("triage"):  # from anybody else, GitHub drops them without a word
        issue.labels = [known_label(here.world, here.repo, name) for name in body.labels]
        issue.assignees = [here.world.user(login) for login in body.assignees]
    here.repo.issues[issue.number] = issue
    return talk_shapes.issue(here.world, here.repo, issue)


@routes.get("/issues/{issue_number}")
async def get_issue(here: Reads, issue_number: Number) -> Any:
    return talk_shapes.issue(here.world, here.repo, here.issue(issue_number))


@routes.patch("/issues/{issue_number}")
async def change_issue(here: WritesTalk, issue_number: Number, body: ChangedIssue) -> Any:
    issue = here.issue(issue_number)
    if here.user is not issue.user:
        here.need_role("triage")
    check_length("Issue", "body", body.body, LIMIT)
    if body.title is not None:
        issue.title = body.title
    if "body" in body.model_fields_set:
        issue.body = body.body
    if body.labels is not None:
        issue.labels = [known_label(here.world, here.repo, name) for name in body.labels]
    if body.assignees is not None:
        issue.assignees = [here.world.user(login) for login in body.assignees]
    if body.state == "closed" and issue.state == "open":
        close(issue)
        issue.closed_by, issue.state_reason = here.user, body.state_reason or "completed"
        here.note(issue, "closed")
    elif body.state == "open" and issue.state == "closed" and issue.pull is None:
        issue.state, issue.closed_at, issue.closed_by, issue.state_reason = "open", None, None, "reopened"
        here.note(issue, "reopened")
    issue.touch()
    return talk_shapes.issue(here.world, here.repo, issue)


@routes.get("/issues/{issue_number}/events")
async def list_events(here: ReadsTalk, issue_number: Number) -> Any:
    issue = here.issue(issue_number)
    return [talk_shapes.event(here.world, here.repo, event) for event in page(here, issue.events)]


# Comments


@routes.get("/issues/{issue_number}/comments")
async def list_comments(here: ReadsTalk, issue_number: Number, since: str = "") -> Any:
    issue = here.issue(issue_number)
    found = [comment for comment in issue.comments if comment.updated_at >= since]
    return [talk_shapes.comment(here.world, here.repo, issue, comment) for comment in page(here, found)]


@routes.post("/issues/{issue_number}/comments", status_code=201)
async def add_comment(here: WritesTalk, issue_number: Number, body: Text) -> Any:
    issue = here.issue(issue_number)
    _check_text(body.body)
    comment = Comment(here.world.next_id(), here.user, body.body)
    issue.comments.append(comment)
    issue.touch()
    return talk_shapes.comment(here.world, here.repo, issue, comment)


@routes.get("/issues/comments/{comment_id}")
async def get_comment(here: ReadsTalk, comment_id: int) -> Any:
    issue, comment = _comment(here, comment_id)
    return talk_shapes.comment(here.world, here.repo, issue, comment)


@routes.patch("/issues/comments/{comment_id}")
async def change_comment(here: WritesTalk, comment_id: int, body: Text) -> Any:
    issue, comment = _comment(here, comment_id)
    if comment.user is not here.user:
        here.need_role("write")
    _check_text(body.body)
    comment.body, comment.updated_at = body.body, now()
    return talk_shapes.comment(here.world, here.repo, issue, comment)


@routes.delete("/issues/comments/{comment_id}", status_code=204)
async def delete_comment(here: WritesTalk, comment_id: int) -> None:
    issue, comment = _comment(here, comment_id)
    if comment.user is not here.user:
        here.need_role("write")
    issue.comments.remove(comment)


@routes.post("/issues/comments/{comment_id}/reactions", status_code=201)
async def react(here: Writes, comment_id: int, body: NewReaction) -> Any:
    _, comment = _comment(here, comment_id)
    if (here.user, body.content) in comment.reactions:
        here.response.status_code = 200
    else:
        comment.reactions.append((here.user, body.content))
    number = here.world.next_id()
    who = user(here.world, here.user)
    return {"id": number, "node_id": node_id("Reaction", number), "user": who, "content": body.content,
            "created_at": now()}  # fmt: skip


def _comment(here: Here, comment_id: int) -> tuple[Issue, Comment]:
    for issue in here.repo.issues.values():
        for comment in issue.comments:
            if comment.id == comment_id:
                return issue, comment
    raise not_found()


def _check_text(text: str) -> None:
    if not text.strip():
        raise invalid("IssueComment", "body", "missing_field")
    check_length("IssueComment", "body", text, LIMIT)
