"""Whether a change of knowledge may be merged: decided from who approved what, and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from metainfer.forge.codeowners import CodeOwners
from metainfer.review.knowledge import KnowledgeChange

MAX_DESCRIPTION = 140
"""As much as a commit status may say."""


class State(StrEnum):
    """Of the check, in the words of GitHub's commit statuses."""

    SUCCESS = "success"
    PENDING = "pending"
    """Somebody has to approve; nothing is wrong."""
    FAILURE = "failure"
    """No approval of this head will do: a person has to change something first."""


@dataclass(frozen=True, slots=True)
class Approval:
    """Somebody's approval of one head. `names` are all that CODEOWNERS may call them: `@login`, teams, an address."""

    by: str
    names: tuple[str, ...]
    head: str
    may_write: bool = True
    """GitHub counts no code owner who may not write."""


@dataclass(frozen=True, slots=True)
class Reviews:
    """What people said about a pull request."""

    approvals: Sequence[Approval] = ()
    objectors: Sequence[str] = ()
    """`@login` of whoever asks for changes and has not taken it back."""
    author: str = ""
    unseen_teams: Sequence[str] = ()
    """Owning teams whose members the token may not read: an approval of theirs may be there, unrecognised."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The check's answer. `description` fits a commit status; `reasons` say everything."""

    state: State
    description: str
    reasons: tuple[str, ...] = ()
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Changed path → who could approve it."""
    approved_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Changed path → who did."""


def judge(change: KnowledgeChange, owners: CodeOwners, reviews: Reviews, head: str) -> Verdict:
    """`owners` are those of the base: a head cannot appoint its own reviewers."""
    if not change.paths:
        if change.problems:
            return _verdict(State.FAILURE, change.problems[0], change.problems)
        return _verdict(State.SUCCESS, "no change of knowledge")
    counted = [approval for approval in reviews.approvals if _counts(approval, reviews, head)]
    names = [name for approval in counted for name in approval.names]
    missing = owners.unapproved(change.paths, names)
    given = {path: _approvers(owners.owners(path), counted) for path in change.paths if path not in missing}
    nobody = sorted(path for path, who in missing.items() if not who)
    objecting = _owners_among(reviews.objectors, owners, change.paths)
    failures = list(change.problems)
    if nobody:
        failures.append(f"{_listed(nobody)}: CODEOWNERS of the base names no owner; somebody has to be named first")
    failures += [f"{who} asks for changes" for who in objecting]
    waiting = _waiting(missing)
    remarks = _remarks(reviews, head, missing)
    if failures:
        return _verdict(State.FAILURE, failures[0], [*failures, *waiting, *remarks], missing, given)
    if missing:
        return _verdict(State.PENDING, waiting[0], [*waiting, *remarks], missing, given)
    who = ", ".join(dict.fromkeys(approval.by for approval in counted if _approves(approval, given)))
    return _verdict(State.SUCCESS, f"approved by {who} at {head[:12]}", (), {}, given)


def _verdict(
    state: State,
    words: str,
    reasons: Iterable[str] = (),
    missing: Mapping[str, tuple[str, ...]] | None = None,
    given: Mapping[str, tuple[str, ...]] | None = None,
) -> Verdict:
    words = "".join(c if c.isprintable() else " " for c in words)
    short = words if len(words) <= MAX_DESCRIPTION else words[: MAX_DESCRIPTION - 1] + "…"
    return Verdict(state, short, tuple(reasons), missing or {}, given or {})


def _counts(approval: Approval, reviews: Reviews, head: str) -> bool:
    own = approval.by.casefold() == reviews.author.casefold()
    return approval.head == head and approval.may_write and not own


def _approvers(owners: Sequence[str], counted: Sequence[Approval]) -> tuple[str, ...]:
    wanted = {owner.casefold() for owner in owners}
    return tuple(a.by for a in counted if wanted.intersection(name.casefold() for name in a.names))


def _approves(approval: Approval, given: Mapping[str, tuple[str, ...]]) -> bool:
    return any(approval.by in who for who in given.values())


def _owners_among(logins: Sequence[str], owners: CodeOwners, paths: Sequence[str]) -> list[str]:
    """Objectors that own a changed path by name. Those of a team are GitHub's to count."""
    named = {owner.casefold() for path in paths for owner in owners.owners(path)}
    return [login for login in logins if login.casefold() in named]


def _waiting(missing: Mapping[str, tuple[str, ...]]) -> list[str]:
    by_owners: dict[tuple[str, ...], list[str]] = {}
    for path, who in missing.items():
        if who:
            by_owners.setdefault(who, []).append(path)
    return [f"waits for {' or '.join(who)}: {_listed(paths)}" for who, paths in by_owners.items()]


def _remarks(reviews: Reviews, head: str, missing: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Why an approval that somebody remembers giving does not count."""
    found = []
    for approval in reviews.approvals:
        if approval.by.casefold() == reviews.author.casefold():
            found.append(f"{approval.by} opened this pull request, and cannot approve it as well")
        elif approval.head != head:
            found.append(f"{approval.by} approved {approval.head[:12]}, and the head is now {head[:12]}: look again")
        elif not approval.may_write:
            found.append(f"{approval.by} approved, and may not write here: GitHub counts no such code owner")
    if not missing:
        return found
    owners = {owner for who in missing.values() for owner in who}
    for team in reviews.unseen_teams:
        if team in owners:
            found.append(
                f"who is in {team} cannot be read with this token: set the secret METAINFER_MEMBERS_TOKEN to one with "
                "the organisation permission “Members: read”, or name people in CODEOWNERS"
            )
    addresses = sorted(owner for owner in owners if not owner.startswith("@"))
    if addresses and any(name.startswith("@") for approval in reviews.approvals for name in approval.names):
        found.append(f"{', '.join(addresses)}: an address names no account; write @login in CODEOWNERS")
    return found


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
    return ", ".join(paths[:2]) + more
