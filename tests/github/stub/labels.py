"""Labels: those of the repository, and those on an issue."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter

from tests.github.stub.access import Body, Here, Number, at, page
from tests.github.stub.refusals import invalid, not_found
from tests.github.stub.shapes import known_label, label
from tests.github.stub.world import Repo

routes = APIRouter(prefix="/repos/{owner}/{repo}")
Reads = Annotated[Here, at("issues")]
ReadsOn = Annotated[Here, at("issues", of_pulls=True)]
Triages = Annotated[Here, at("issues", "write", "triage", of_pulls=True)]
Writes = Annotated[Here, at("issues", "write", "write")]


class Names(Body):
    labels: list[str]


class NewLabel(Body):
    name: str
    color: str = "ededed"
    description: str | None = None


class ChangedLabel(Body):
    new_name: str | None = None
    color: str | None = None
    description: str | None = None


@routes.get("/issues/{issue_number}/labels")
async def labels_of(here: ReadsOn, issue_number: Number) -> Any:
    return [label(here.world, here.repo, name) for name in page(here, here.issue(issue_number).labels)]


@routes.post("/issues/{issue_number}/labels")
async def add_labels(here: Triages, issue_number: Number, body: Names) -> Any:
    issue = here.issue(issue_number)
    for name in body.labels:
        known = known_label(here.world, here.repo, name)
        if known not in issue.labels:
            issue.labels.append(known)
            here.note(issue, "labeled", known)
    issue.touch()
    return [label(here.world, here.repo, name) for name in issue.labels]


@routes.put("/issues/{issue_number}/labels")
async def set_labels(here: Triages, issue_number: Number, body: Names) -> Any:
    issue = here.issue(issue_number)
    before, issue.labels = issue.labels, [known_label(here.world, here.repo, name) for name in body.labels]
    for name in issue.labels:
        if name not in before:
            here.note(issue, "labeled", name)
    for name in before:
        if name not in issue.labels:
            here.note(issue, "unlabeled", name)
    return [label(here.world, here.repo, name) for name in issue.labels]


@routes.delete("/issues/{issue_number}/labels/{name:path}")
async def remove_label(here: Triages, issue_number: Number, name: str) -> Any:
    issue = here.issue(issue_number)
    found = next((known for known in issue.labels if known.casefold() == name.casefold()), None)
    if found is None:
        raise not_found()
    issue.labels.remove(found)
    here.note(issue, "unlabeled", found)
    issue.touch()
    return [label(here.world, here.repo, name) for name in issue.labels]


@routes.get("/labels")
async def list_labels(here: Reads) -> Any:
    return [label(here.world, here.repo, name) for name in page(here, list(here.repo.labels))]


@routes.post("/labels", status_code=201)
async def create_label(here: Writes, body: NewLabel) -> Any:
    if any(known.casefold() == body.name.casefold() for known in here.repo.labels):
        raise invalid("Label", "name", "already_exists")
    known = known_label(here.world, here.repo, body.name, body.color, body.description)
    return label(here.world, here.repo, known)


@routes.get("/labels/{name:path}")
async def get_label(here: Reads, name: str) -> Any:
    return label(here.world, here.repo, _known(here.repo, name))


@routes.patch("/labels/{name:path}")
async def change_label(here: Writes, name: str, body: ChangedLabel) -> Any:
    known = _known(here.repo, name)
    news = body.model_dump(exclude_unset=True, exclude={"new_name"})
    settings = here.repo.labels.pop(known) | news
    new = body.new_name or known
    here.repo.labels[new] = settings
    for issue in here.repo.issues.values():
        issue.labels = [new if each == known else each for each in issue.labels]
    return label(here.world, here.repo, new)


@routes.delete("/labels/{name:path}", status_code=204)
async def delete_label(here: Writes, name: str) -> None:
    known = _known(here.repo, name)
    del here.repo.labels[known]
    for issue in here.repo.issues.values():
        issue.labels = [each for each in issue.labels if each != known]


def _known(repo: Repo, name: str) -> str:
    found = next((known for known in repo.labels if known.casefold() == name.casefold()), None)
    if found is None:
        raise not_found()
    return found
