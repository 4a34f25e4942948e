"""What guards a branch: its protection and the rulesets that name it, taken together, and the code owners' file."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.github.bare import Bare
from tests.github.stub.world import Repo

LOCATIONS = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS")


@dataclass(frozen=True, slots=True)
class Rules:
    """The strictest of all that applies. No approvals and no contexts: the branch is free."""

    contexts: tuple[str, ...] = ()
    strict: bool = False
    """Whether the head must hold all of the base."""
    approvals: int | None = None
    """None: no pull request is needed."""
    code_owners: bool = False
    dismiss_stale: bool = False
    last_push: bool = False
    deletion: bool = False
    non_fast_forward: bool = False

    @property
    def protects(self) -> bool:
        return self != Rules()


def rules_for(repo: Repo, branch: str) -> Rules:
    """All that guards a branch."""
    found = [_of_protection(repo.protection[branch])] if branch in repo.protection else []
    found += [_of_rule(rule) for rule in active_rules(repo, branch)]
    return Rules(
        contexts=tuple(dict.fromkeys(context for one in found for context in one.contexts)),
        strict=any(one.strict for one in found),
        approvals=max((one.approvals for one in found if one.approvals is not None), default=None),
        code_owners=any(one.code_owners for one in found),
        dismiss_stale=any(one.dismiss_stale for one in found),
        last_push=any(one.last_push for one in found),
        deletion=any(one.deletion for one in found),
        non_fast_forward=any(one.non_fast_forward for one in found),
    )


def active_rules(repo: Repo, branch: str) -> list[dict[str, Any]]:
    """The rules of the rulesets that name a branch, each with the ruleset it comes from."""
    return [
        {
            "type": rule["type"],
            **({"parameters": rule["parameters"]} if "parameters" in rule else {}),
            "ruleset_source_type": "Repository",
            "ruleset_source": repo.full_name,
            "ruleset_id": ruleset["id"],
        }
        for ruleset in repo.rulesets
        if ruleset["enforcement"] == "active" and ruleset.get("target", "branch") == "branch"
        if _names(repo, ruleset.get("conditions") or {}, branch)
        for rule in ruleset.get("rules") or ()
    ]


def guard_pushes(repo: Repo) -> None:
    """Tell the Git server which branches take no push: those that want a pull request or a check."""
    guarded = []
    for branch in repo.bare.branches():
        rules = rules_for(repo, branch)
        if rules.approvals is not None or rules.contexts:
            guarded.append(branch)
    repo.bare.protect(guarded)


def _names(repo: Repo, conditions: Mapping[str, Any], branch: str) -> bool:
    names = conditions.get("ref_name") or {}

    def hit(patterns: Sequence[str]) -> bool:
        return any(
            pattern == "~ALL"
            or (pattern == "~DEFAULT_BRANCH" and branch == repo.default_branch)
            or fnmatch.fnmatchcase(f"refs/heads/{branch}", pattern)
            for pattern in patterns
        )

    return hit(names.get("include") or ()) and not hit(names.get("exclude") or ())


def _of_protection(body: Mapping[str, Any]) -> Rules:
    checks, reviews = body.get("required_status_checks") or {}, body.get("required_pull_request_reviews")
    return Rules(
        contexts=tuple(checks_of(checks)),
        strict=bool(checks.get("strict")),
        approvals=None if reviews is None else int(reviews.get("required_approving_review_count") or 0),
        code_owners=bool((reviews or {}).get("require_code_owner_reviews")),
        dismiss_stale=bool((reviews or {}).get("dismiss_stale_reviews")),
        last_push=bool((reviews or {}).get("require_last_push_approval")),
        deletion=not body.get("allow_deletions"),
        non_fast_forward=not body.get("allow_force_pushes"),
    )


def checks_of(body: Mapping[str, Any]) -> list[str]:
    """The names of required checks, in either of the two forms that GitHub takes."""
    return [*(body.get("contexts") or ()), *(check["context"] for check in body.get("checks") or ())]


def _of_rule(rule: Mapping[str, Any]) -> Rules:
    given = rule.get("parameters") or {}
    match rule["type"]:
        case "pull_request":
            return Rules(
                approvals=given["required_approving_review_count"],
                code_owners=given["require_code_owner_review"],
                dismiss_stale=given["dismiss_stale_reviews_on_push"],
                last_push=given["require_last_push_approval"],
            )
        case "required_status_checks":
            contexts = tuple(check["context"] for check in given["required_status_checks"])
            return Rules(contexts=contexts, strict=given["strict_required_status_checks_policy"])
        case "deletion":
            return Rules(deletion=True)
        case "non_fast_forward":
            return Rules(non_fast_forward=True)
    return Rules()


# CODEOWNERS: read here by rules of our own, so that the code under test is not its own judge


def owners_text(bare: Bare, revision: str) -> tuple[str, str]:
    """The path and text of the code owners' file at a commit; empty ones if there is none."""
    for path in LOCATIONS:
        if (data := bare.file(revision, path)) is not None:
            return path, data.decode()
    return "", ""


def owners_of(text: str, path: str) -> list[str]:
    """The owners of a path by the last line that matches. A pattern of a kind that is not known here is an error."""
    found: list[str] = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words and _matches(words[0], path):
            found = words[1:]
    return found


def _matches(pattern: str, path: str) -> bool:
    if pattern == "*":
        return True
    if pattern.startswith("*.") and "/" not in pattern:
        return path.endswith(pattern[1:])
    plain = pattern.strip("/")
    if any(mark in plain for mark in "*?[]!\\"):
        raise NotImplementedError(f"the stub does not read the pattern {pattern!r} in CODEOWNERS")
    anchored = pattern.startswith("/") or "/" in plain
    folder = f"{plain}/"
    if anchored:
        return path.startswith(folder) or (path == plain and not pattern.endswith("/"))
    return f"/{folder}" in f"/{path}" or (f"/{path}".endswith(f"/{plain}") and not pattern.endswith("/"))
