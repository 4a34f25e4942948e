"""Pull requests follow Git: a push moves heads, a deleted branch closes, a base that holds a head merges it."""

from __future__ import annotations

from tests.github.bare import Bare
from tests.github.stub.rules import rules_for
from tests.github.stub.world import Issue, Repo, World, now


def follow_git(world: World, repo: Repo) -> None:
    """Bring every open pull request of a repository to what Git holds now."""
    for issue in repo.issues.values():
        if issue.pull is not None and issue.state == "open":
            _follow(world, repo, issue)


def head_tip(world: World, repo: Repo, issue: Issue) -> str | None:
    """Where a pull request's branch is, in whichever repository that is."""
    assert issue.pull is not None
    source = world.repo(issue.pull.head_repo)
    return source.bare.tip(f"refs/heads/{issue.pull.head_ref}") if source else None


def bring_head(world: World, repo: Repo, head_repo: str, number: int, sha: str) -> None:
    """Make a head reachable in the base repository, as refs/pull/N/head."""
    source = world.repo(head_repo)
    if source is not None and source is not repo:
        repo.bare.git("fetch", "--quiet", "--no-write-fetch-head", str(source.bare.path), sha)
    repo.bare.set_ref(f"refs/pull/{number}/head", sha)


def _follow(world: World, repo: Repo, issue: Issue) -> None:
    pull = issue.pull
    assert pull is not None
    tip, base = head_tip(world, repo, issue), repo.bare.tip(f"refs/heads/{pull.base_ref}")
    if (tip, base) == (pull.head, pull.base_tip):
        return
    if base is None or tip is None:
        close(issue)
        return
    if repo.bare.is_ancestor(tip, base) and not repo.bare.is_ancestor(tip, pull.base_tip):
        pull.head, pull.merged_at, pull.merge_commit = tip, now(), base
        close(issue)
        return
    if tip != pull.head:
        bring_head(world, repo, pull.head_repo, issue.number, tip)
        pull.head, pull.base_sha = tip, base
        issue.touch()
        if rules_for(repo, pull.base_ref).dismiss_stale:
            for review in pull.reviews:
                review.state = "DISMISSED" if review.state == "APPROVED" else review.state
        if nothing_between(repo.bare, base, tip):
            close(issue)
    pull.base_tip = base


def nothing_between(bare: Bare, base: str, head: str) -> bool:
    """Whether the head brings no commit that the base lacks."""
    return bare.is_ancestor(head, base)


def close(issue: Issue) -> None:
    """Close an issue or a pull request; nobody in particular did it."""
    issue.state = "closed"
    issue.closed_at = now()
    issue.touch()
