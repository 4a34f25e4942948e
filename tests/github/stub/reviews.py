"""Reviews of pull requests: each person's last word counts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter

from tests.github.stub import talk_shapes
from tests.github.stub.access import Body, Here, Number, at, page
from tests.github.stub.refusals import Refusal, check_length, not_found
from tests.github.stub.world import Review, now

routes = APIRouter(prefix="/repos/{owner}/{repo}/pulls/{pull_number}/reviews")
Reads = Annotated[Here, at("pull_requests")]
Writes = Annotated[Here, at("pull_requests", "write")]
_STATES = {"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED", None: "PENDING"}


class NewReview(Body):
    event: Literal["APPROVE", "REQUEST_CHANGES", "COMMENT"] | None = None
    body: str | None = None
    commit_id: str | None = None


class Dismissal(Body):
    message: str
    event: Literal["DISMISS"] | None = None


@routes.get("")
async def list_reviews(here: Reads, pull_number: Number) -> Any:
    issue = here.pull(pull_number)
    assert issue.pull is not None
    own = here.token.user if here.token else None
    seen = [review for review in issue.pull.reviews if review.state != "PENDING" or review.user is own]
    return [talk_shapes.review(here.world, here.repo, issue, review) for review in page(here, seen)]


@routes.post("")
async def create_review(here: Writes, pull_number: Number, body: NewReview) -> Any:
    issue = here.pull(pull_number)
    pull = issue.pull
    assert pull is not None
    if body.event in ("APPROVE", "REQUEST_CHANGES") and here.user is issue.user:
        verb = "approve" if body.event == "APPROVE" else "request changes on"
        raise Refusal(422, "Unprocessable Entity", [f"Can not {verb} your own pull request"])
    if body.event in ("REQUEST_CHANGES", "COMMENT") and not (body.body or "").strip():
        raise Refusal(422, "Unprocessable Entity", ["Body can't be blank"])
    check_length("PullRequestReview", "body", body.body, 65_536)
    sha = body.commit_id or pull.head
    if here.repo.bare.commit_at(sha) != sha or not here.repo.bare.is_ancestor(sha, pull.head):
        raise Refusal(422, "Unprocessable Entity", ["Commit is not part of the pull request"])
    if any(review.user is here.user and review.state == "PENDING" for review in pull.reviews):
        raise Refusal(422, "Unprocessable Entity", ["User can only have one pending review per pull request"])
    review = Review(here.world.next_id(), here.user, _STATES[body.event], body.body or "", sha)
    pull.reviews.append(review)
    if here.user.login in pull.requested_users:
        pull.requested_users.remove(here.user.login)
    issue.touch()
    return talk_shapes.review(here.world, here.repo, issue, review)


@routes.get("/{review_id}")
async def get_review(here: Reads, pull_number: Number, review_id: int) -> Any:
    return talk_shapes.review(here.world, here.repo, here.pull(pull_number), _find(here, pull_number, review_id))


@routes.put("/{review_id}/dismissals")
async def dismiss_review(here: Writes, pull_number: Number, review_id: int, body: Dismissal) -> Any:
    here.need_role("write")
    review = _find(here, pull_number, review_id)
    if review.state not in ("APPROVED", "CHANGES_REQUESTED"):
        raise Refusal(422, "Unprocessable Entity", ["Can not dismiss a commented pull request review"])
    review.state, review.submitted_at = "DISMISSED", now()
    return talk_shapes.review(here.world, here.repo, here.pull(pull_number), review)


def _find(here: Here, number: int, review_id: int) -> Review:
    pull = here.pull(number).pull
    assert pull is not None
    found = next((review for review in pull.reviews if review.id == review_id), None)
    if found is None:
        raise not_found()
    return found
