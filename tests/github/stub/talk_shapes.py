"""Issues, pull requests, and what is said about them, as the API's JSON."""

from __future__ import annotations

from tests.github.stub.diffs import changed_files, count_commits
from tests.github.stub.merging import mergeable_state
from tests.github.stub.shapes import Json, full_repo, html_url, label, node_id, repo_url, user
from tests.github.stub.world import Comment, Issue, IssueEvent, Repo, Review, User, World


def association(world: World, repo: Repo, who: User) -> str:
    """What GitHub calls somebody's relation to a repository. It says nothing about what they may do."""
    if who is repo.owner:
        return "OWNER"
    return "COLLABORATOR" if repo.roles.get(who.login.casefold()) else "NONE"


def _common(world: World, repo: Repo, issue: Issue) -> Json:
    return {
        "id": issue.id,
        "number": issue.number,
        "title": issue.title,
        "body": issue.body,
        "user": user(world, issue.user),
        "state": issue.state,
        "locked": False,
        "active_lock_reason": None,
        "labels": [label(world, repo, name) for name in issue.labels],
        "assignee": user(world, issue.assignees[0]) if issue.assignees else None,
        "assignees": [user(world, who) for who in issue.assignees],
        "milestone": None,
        "created_at": issue.created_at,
        "updated_at": issue.updated_at,
        "closed_at": issue.closed_at,
        "author_association": association(world, repo, issue.user),
    }


def issue(world: World, repo: Repo, which: Issue) -> Json:
    """An issue, or a pull request seen as one: the only place that says who closed it."""
    url = f"{repo_url(world, repo)}/issues/{which.number}"
    page = "pull" if which.pull else "issues"
    html = f"{html_url(world, repo)}/{page}/{which.number}"
    answer = _common(world, repo, which) | {
        "node_id": node_id("Issue", which.id),
        "url": url,
        "repository_url": repo_url(world, repo),
        "labels_url": f"{url}/labels{{/name}}",
        "comments_url": f"{url}/comments",
        "events_url": f"{url}/events",
        "timeline_url": f"{url}/timeline",
        "html_url": html,
        "comments": len(which.comments),
        "closed_by": user(world, which.closed_by) if which.closed_by else None,
        "state_reason": which.state_reason,
        "performed_via_github_app": None,
        "reactions": _reactions(f"{url}/reactions", []),
    }
    if which.pull:
        answer |= {
            "draft": which.pull.draft,
            "pull_request": {
                "url": f"{repo_url(world, repo)}/pulls/{which.number}",
                "html_url": html,
                "diff_url": f"{html}.diff",
                "patch_url": f"{html}.patch",
                "merged_at": which.pull.merged_at,
            },
        }
    return answer


def _reactions(url: str, given: list[tuple[User, str]]) -> Json:
    names = ("+1", "-1", "laugh", "confused", "heart", "hooray", "eyes", "rocket")
    counts = {name: sum(content == name for _, content in given) for name in names}
    return {"url": url, "total_count": len(given), **counts}


def comment(world: World, repo: Repo, where: Issue, which: Comment) -> Json:
    url = f"{repo_url(world, repo)}/issues/comments/{which.id}"
    page = "pull" if where.pull else "issues"
    return {
        "id": which.id,
        "node_id": node_id("IssueComment", which.id),
        "url": url,
        "html_url": f"{html_url(world, repo)}/{page}/{where.number}#issuecomment-{which.id}",
        "issue_url": f"{repo_url(world, repo)}/issues/{where.number}",
        "user": user(world, which.user),
        "body": which.body,
        "created_at": which.created_at,
        "updated_at": which.updated_at,
        "author_association": association(world, repo, which.user),
        "performed_via_github_app": None,
        "reactions": _reactions(f"{url}/reactions", which.reactions),
    }


def event(world: World, repo: Repo, which: IssueEvent) -> Json:
    """What was done to an issue, in the list of one issue's events."""
    answer = {
        "id": which.id,
        "node_id": node_id("IssueEvent", which.id),
        "url": f"{repo_url(world, repo)}/issues/events/{which.id}",
        "actor": user(world, which.actor),
        "event": which.event,
        "commit_id": None,
        "commit_url": None,
        "created_at": which.created_at,
        "performed_via_github_app": None,
    }
    if which.label is not None:
        answer["label"] = {"name": which.label, "color": repo.labels[which.label]["color"]}
    return answer


def review(world: World, repo: Repo, where: Issue, which: Review) -> Json:
    pull_url = f"{repo_url(world, repo)}/pulls/{where.number}"
    html = f"{html_url(world, repo)}/pull/{where.number}#pullrequestreview-{which.id}"
    return {
        "id": which.id,
        "node_id": node_id("PullRequestReview", which.id),
        "user": user(world, which.user),
        "body": which.body,
        "state": which.state,
        "commit_id": which.commit_id,
        "submitted_at": which.submitted_at,
        "html_url": html,
        "pull_request_url": pull_url,
        "author_association": association(world, repo, which.user),
        "_links": {"html": {"href": html}, "pull_request": {"href": pull_url}},
    }


def pull(world: World, repo: Repo, which: Issue, viewer: User | None) -> Json:
    """A pull request as it stands in a list."""
    it = which.pull
    assert it is not None
    url = f"{repo_url(world, repo)}/pulls/{which.number}"
    issue_url = f"{repo_url(world, repo)}/issues/{which.number}"
    html = f"{html_url(world, repo)}/pull/{which.number}"
    statuses = f"{repo_url(world, repo)}/statuses/{it.head}"
    source = world.repo(it.head_repo)
    owner = source.owner if source else world.user(it.head_repo.partition("/")[0])
    hrefs = {
        "self": url,
        "html": html,
        "issue": issue_url,
        "comments": f"{issue_url}/comments",
        "review_comments": f"{url}/comments",
        "review_comment": f"{repo_url(world, repo)}/pulls/comments{{/number}}",
        "commits": f"{url}/commits",
        "statuses": statuses,
    }
    return _common(world, repo, which) | {
        "node_id": node_id("PullRequest", which.id),
        "url": url,
        "html_url": html,
        "diff_url": f"{html}.diff",
        "patch_url": f"{html}.patch",
        "issue_url": issue_url,
        "commits_url": hrefs["commits"],
        "review_comments_url": hrefs["review_comments"],
        "review_comment_url": hrefs["review_comment"],
        "comments_url": hrefs["comments"],
        "statuses_url": statuses,
        "_links": {name: {"href": href} for name, href in hrefs.items()},
        "merged_at": it.merged_at,
        "merge_commit_sha": it.merge_commit,
        "requested_reviewers": [user(world, world.user(login)) for login in it.requested_users],
        "requested_teams": [],
        "draft": it.draft,
        "auto_merge": None,
        "head": {
            "label": f"{owner.login}:{it.head_ref}",
            "ref": it.head_ref,
            "sha": it.head,
            "user": user(world, owner),
            "repo": full_repo(world, source, viewer) if source else None,
        },
        "base": {
            "label": f"{repo.owner.login}:{it.base_ref}",
            "ref": it.base_ref,
            "sha": it.base_sha,
            "user": user(world, repo.owner),
            "repo": full_repo(world, repo, viewer),
        },
    }


def full_pull(world: World, repo: Repo, which: Issue, viewer: User | None) -> Json:
    """A pull request asked for by its number: with its size, and whether it can be merged."""
    it = which.pull
    assert it is not None
    files = changed_files(repo.bare, it.base_sha, it.head)
    merged, state = it.merged_at is not None, mergeable_state(world, repo, which)
    return pull(world, repo, which, viewer) | {
        "merged": merged,
        "merged_by": user(world, it.merged_by) if it.merged_by else None,
        "mergeable": None if which.state == "closed" else state != "dirty",
        "mergeable_state": state,
        "rebaseable": None if which.state == "closed" else state != "dirty",
        "maintainer_can_modify": it.maintainer_can_modify,
        "comments": len(which.comments),
        "review_comments": 0,
        "commits": count_commits(repo.bare, it.base_sha, it.head),
        "additions": sum(file.additions for file in files),
        "deletions": sum(file.deletions for file in files),
        "changed_files": len(files),
    }
