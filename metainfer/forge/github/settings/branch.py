"""How the default branch is protected: by rulesets, by classic protection, or by both. The stricter one counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from metainfer.forge.github.connect import Connection
from metainfer.forge.github.settings.points import Point, ask, judged, unread

REVIEW_CHECK = "ckb-review"
_PLACE = "Settings → Rules → Rulesets → (a ruleset for the default branch)"
_NEEDS = "the repository permission “Administration: read”"


@dataclass
class Protection:
    """What holds on the branch, as far as it was read. `unread`: classic protection is there or not, nobody knows."""

    pull_request: bool = False
    approvals: int = 0
    code_owners: bool = False
    dismisses_stale: bool = False
    last_push: bool = False
    checks: dict[str, bool] = field(default_factory=dict)
    """Required check → whether it must come from one particular App."""
    no_force_push: bool = False
    no_deletion: bool = False
    unread: bool = False

    def names(self) -> Sequence[str]:
        return sorted(self.checks)


def examine_branch(connection: Connection, branch: str, checks: Sequence[str]) -> Iterator[Point]:
    """What the branch must be protected by. `checks` are those that must be required beside ckb-review."""
    found = read_protection(connection, branch)

    def point(what: str, good: bool, step: str, *, advice: bool = False) -> Point:
        if not good and found.unread and not advice:
            return unread(what, f"{_NEEDS} (rulesets do not ask for it; classic branch protection may)")
        return judged(what, good, step=f"{_PLACE}: {step}", advice=advice)

    yield point(
        f"{branch} is changed by pull request only", found.pull_request, "tick “Require a pull request before merging”"
    )
    yield point("at least one approval is needed", found.approvals >= 1, "“Required approvals”: 1 or more")
    yield point("code owners have to approve", found.code_owners, "tick “Require review from Code Owners”")
    yield point(
        "approvals end with a new push",
        found.dismisses_stale,
        "tick “Dismiss stale pull request approvals when new commits are pushed”",
    )
    for name in dict.fromkeys((REVIEW_CHECK, *checks)):
        yield point(
            f"the check {name} is required",
            name in found.checks,
            f"“Require status checks to pass”, add {name} (it is offered once it ran)",
        )
    if not checks:
        others = [name for name in found.names() if name != REVIEW_CHECK]
        yield point(
            "a check of the repository's own CI is required",
            bool(others),
            "“Require status checks to pass”, add your CI's job",
        )
    yield point("the branch cannot be force-pushed", found.no_force_push, "tick “Block force pushes”")
    yield point("the branch cannot be deleted", found.no_deletion, "tick “Restrict deletions”", advice=True)
    yield point(
        "whoever pushed last does not approve alone",
        found.last_push,
        "tick “Require approval of the most recent reviewable push”; without it an owner may approve what they pushed",
        advice=True,
    )
    if found.checks.get(REVIEW_CHECK) is False:
        yield Point(
            "advice",
            f"{REVIEW_CHECK} is taken from any source",
            "whoever may write can set a status of that name; the review from code owners holds all the same",
            f"{_PLACE}: “Require status checks to pass”, choose your App as the source of {REVIEW_CHECK}",
        )


def read_protection(connection: Connection, branch: str) -> Protection:
    """Both kinds of protection, put together."""
    root, name = f"/repos/{connection.address.slug}", quote(branch, safe="")
    found = Protection()
    rules = ask(connection, f"{root}/rules/branches/{name}?per_page=100")
    if rules.data is None:
        found.unread = True  # a server without rulesets, or a token without the repository
    for rule in rules.data or ():
        _add_rule(found, str(rule.get("type")), rule.get("parameters") or {})
    classic = ask(connection, f"{root}/branches/{name}/protection")
    if classic.data is not None:
        _add_classic(found, classic.data)
    elif classic.message != "Branch not protected":
        # Anybody may see which checks are required; the rest is for administrators.
        summary = ask(connection, f"{root}/branches/{name}").data or {}
        if summary.get("protected", True):
            found.unread = True
        contexts = ((summary.get("protection") or {}).get("required_status_checks") or {}).get("contexts") or ()
        found.checks |= {str(context): found.checks.get(str(context), False) for context in contexts}
    return found


def _add_rule(found: Protection, kind: str, given: Mapping[str, Any]) -> None:
    match kind:
        case "pull_request":
            found.pull_request = True
            found.approvals = max(found.approvals, int(given.get("required_approving_review_count") or 0))
            found.code_owners |= bool(given.get("require_code_owner_review"))
            found.dismisses_stale |= bool(given.get("dismiss_stale_reviews_on_push"))
            found.last_push |= bool(given.get("require_last_push_approval"))
        case "required_status_checks":
            for check in given.get("required_status_checks") or ():
                _add_check(found, check.get("context"), check.get("integration_id"))
        case "non_fast_forward":
            found.no_force_push = True
        case "deletion":
            found.no_deletion = True


def _add_classic(found: Protection, data: Mapping[str, Any]) -> None:
    reviews = data.get("required_pull_request_reviews")
    if reviews is not None:
        found.pull_request = True
        found.approvals = max(found.approvals, int(reviews.get("required_approving_review_count") or 0))
        found.code_owners |= bool(reviews.get("require_code_owner_reviews"))
        found.dismisses_stale |= bool(reviews.get("dismiss_stale_reviews"))
        found.last_push |= bool(reviews.get("require_last_push_approval"))
    statuses = data.get("required_status_checks") or {}
    for check in statuses.get("checks") or ():
        _add_check(found, check.get("context"), check.get("app_id"))
    for context in statuses.get("contexts") or ():
        _add_check(found, context, None)
    found.no_force_push |= not _enabled(data, "allow_force_pushes")
    found.no_deletion |= not _enabled(data, "allow_deletions")


def _add_check(found: Protection, context: object, app: object) -> None:
    pinned = isinstance(app, int) and app > 0
    found.checks[str(context)] = pinned or found.checks.get(str(context), False)


def _enabled(data: Mapping[str, Any], name: str) -> bool:
    return bool((data.get(name) or {}).get("enabled"))
