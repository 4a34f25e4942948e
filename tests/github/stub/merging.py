"""Whether a pull request may be merged, by GitHub's rules for its base, and the merge itself."""

from __future__ import annotations

from typing import Literal

from tests.github.bare import Who
from tests.github.stub.access import has_role
from tests.github.stub.diffs import changed_files, commits
from tests.github.stub.refusals import Refusal
from tests.github.stub.rules import Rules, owners_of, owners_text, rules_for
from tests.github.stub.world import Issue, Repo, Review, User, World

GOOD = ("success", "neutral", "skipped")


def standing(issue: Issue) -> dict[str, Review]:
    """Each person's last word, comments aside."""
    assert issue.pull is not None
    return {
        review.user.login.casefold(): review
        for review in issue.pull.reviews
        if review.state in ("APPROVED", "CHANGES_REQUESTED", "DISMISSED")
    }


def blockers(world: World, repo: Repo, issue: Issue) -> list[str]:
    """What GitHub says is in the way, apart from conflicts."""
    pull = issue.pull
    assert pull is not None
    rules = rules_for(repo, pull.base_ref)
    found = ["Draft pull requests cannot be merged."] if pull.draft else []
    states = context_states(repo, pull.head)
    found += [
        f'Required status check "{context}" is {"expected" if context not in states else "failing"}.'
        for context in rules.contexts
        if states.get(context) not in GOOD
    ]
    if rules.strict and pull.base_tip and not repo.bare.is_ancestor(pull.base_tip, pull.head):
        found.append("The head branch is not up to date with the base branch.")
    if rules.approvals is not None:
        found += _review_blockers(world, repo, issue, rules)
    return found


def _review_blockers(world: World, repo: Repo, issue: Issue, rules: Rules) -> list[str]:
    pull = issue.pull
    assert pull is not None
    counted = {
        login: review
        for login, review in standing(issue).items()
        if has_role(world, repo, review.user, "write")
        and not (rules.last_push and review.state == "APPROVED" and login == pull.last_pusher.casefold())
    }
    found = []
    approvers = [login for login, review in counted.items() if review.state == "APPROVED"]
    if any(review.state == "CHANGES_REQUESTED" for review in counted.values()):
        found.append("Changes were requested.")
    needed = rules.approvals or 0
    if len(approvers) < needed:
        plural = "s are" if needed > 1 else " is"
        found.append(f"At least {needed} approving review{plural} required by reviewers with write access.")
    if rules.code_owners and not _owners_approved(world, repo, issue, approvers):
        found.append("Waiting on code owner review.")
    return found


def _owners_approved(world: World, repo: Repo, issue: Issue, approvers: list[str]) -> bool:
    pull = issue.pull
    assert pull is not None
    _, text = owners_text(repo.bare, pull.base_tip)
    paths = [path for file in changed_files(repo.bare, pull.base_sha, pull.head) for path in (file.path, file.previous)]
    for path in filter(None, paths):
        owners = owners_of(text, path)
        if owners and not any(_is(world, owner, login) for owner in owners for login in approvers):
            return False
    return True


def _is(world: World, owner: str, login: str) -> bool:
    name = owner.removeprefix("@").casefold()
    org, slash, slug = name.partition("/")
    if slash:
        team = world.teams.get((org, slug))
        return team is not None and team.members.get(login) == "active"
    return name == login or world.user(login).email.casefold() == name


def context_states(repo: Repo, sha: str) -> dict[str, str]:
    """What statuses and finished check runs say of a commit, the newest of each name."""
    states = {status.context: status.state for status in repo.statuses if status.sha == sha}
    runs = (run for run in repo.checks if run["head_sha"] == sha)
    return states | {run["name"]: run["conclusion"] or "pending" for run in runs}


def mergeable_state(world: World, repo: Repo, issue: Issue) -> str:
    """One word: clean, dirty (conflicts), blocked, behind, draft, unstable; unknown once it is closed."""
    pull = issue.pull
    assert pull is not None
    if issue.state == "closed":
        return "unknown"
    if repo.bare.merged_tree(pull.base_tip, pull.head) is None:
        return "dirty"
    if pull.draft:
        return "draft"
    found = blockers(world, repo, issue)
    if found:
        return "behind" if all("up to date" in reason for reason in found) else "blocked"
    return "clean" if all(state in GOOD for state in context_states(repo, pull.head).values()) else "unstable"


def merge(
    world: World, repo: Repo, issue: Issue, by: User, how: Literal["merge", "squash", "rebase"], message: str
) -> str:
    """Merge; gives the new tip of the base. 405 with GitHub's words if it must not be."""
    pull = issue.pull
    assert pull is not None
    tree = repo.bare.merged_tree(pull.base_tip, pull.head)
    if tree is None:
        raise Refusal(405, "Pull Request is not mergeable")
    if found := blockers(world, repo, issue):
        raise Refusal(405, "\n".join(found))
    who = Who(by.name or by.login, by.email or f"{by.login}@users.noreply")
    server = Who("GitHub", "noreply@github.com")
    if how == "rebase":
        tip = pull.base_tip
        if repo.bare.is_ancestor(tip, pull.head):
            for commit in reversed(commits(repo.bare, f"{tip}..{pull.head}")):
                author = Who(*commit.author[:2])
                tip = repo.bare.commit_tree(commit.tree, [tip], commit.message, author, server)
        else:
            raise Refusal(405, "This branch can't be rebased")
    else:
        parents = [pull.base_tip, pull.head] if how == "merge" else [pull.base_tip]
        tip = repo.bare.commit_tree(tree, parents, message, who, server)
    repo.bare.set_ref(f"refs/heads/{pull.base_ref}", tip)
    return tip
