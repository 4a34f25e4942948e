"""People, repositories and teams as the API's JSON. Every URL is on the one host that the caller knows."""

from __future__ import annotations

import base64
from typing import Any

from tests.github.stub.refusals import check_length
from tests.github.stub.world import App, Repo, Team, User, World

Json = dict[str, Any]
EPOCH = "2026-01-01T00:00:00Z"

_REPO_URLS = {
    "archive_url": "/{archive_format}{/ref}",
    "assignees_url": "/assignees{/user}",
    "blobs_url": "/git/blobs{/sha}",
    "branches_url": "/branches{/branch}",
    "collaborators_url": "/collaborators{/collaborator}",
    "comments_url": "/comments{/number}",
    "commits_url": "/commits{/sha}",
    "compare_url": "/compare/{base}...{head}",
    "contents_url": "/contents/{+path}",
    "contributors_url": "/contributors",
    "deployments_url": "/deployments",
    "downloads_url": "/downloads",
    "events_url": "/events",
    "forks_url": "/forks",
    "git_commits_url": "/git/commits{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "hooks_url": "/hooks",
    "issue_comment_url": "/issues/comments{/number}",
    "issue_events_url": "/issues/events{/number}",
    "issues_url": "/issues{/number}",
    "keys_url": "/keys{/key_id}",
    "labels_url": "/labels{/name}",
    "languages_url": "/languages",
    "merges_url": "/merges",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "pulls_url": "/pulls{/number}",
    "releases_url": "/releases{/id}",
    "stargazers_url": "/stargazers",
    "statuses_url": "/statuses/{sha}",
    "subscribers_url": "/subscribers",
    "subscription_url": "/subscription",
    "tags_url": "/tags",
    "teams_url": "/teams",
    "trees_url": "/git/trees{/sha}",
}
_USER_URLS = {
    "followers_url": "/followers",
    "following_url": "/following{/other_user}",
    "gists_url": "/gists{/gist_id}",
    "starred_url": "/starred{/owner}{/repo}",
    "subscriptions_url": "/subscriptions",
    "organizations_url": "/orgs",
    "repos_url": "/repos",
    "events_url": "/events{/privacy}",
    "received_events_url": "/received_events",
}
SETTINGS = {
    "allow_merge_commit": True,
    "allow_squash_merge": True,
    "allow_rebase_merge": True,
    "allow_auto_merge": False,
    "delete_branch_on_merge": False,
    "has_issues": True,
}


def node_id(kind: str, number: int) -> str:
    """GraphQL's name of a thing."""
    return base64.b64encode(f"{kind}:{number}".encode()).decode()


def repo_url(world: World, repo: Repo) -> str:
    return f"{world.api}/repos/{repo.full_name}"


def html_url(world: World, repo: Repo) -> str:
    return f"{world.base}/{repo.full_name}"


def user(world: World, who: User) -> Json:
    """The short form, which is inside of most answers."""
    url = f"{world.api}/users/{who.login}"
    return {
        "login": who.login,
        "id": who.id,
        "node_id": node_id("User", who.id),
        "avatar_url": f"{world.base}/avatars/{who.id}",
        "gravatar_id": "",
        "url": url,
        "html_url": f"{world.base}/{who.login}",
        "type": who.type,
        "site_admin": False,
        **{name: url + path for name, path in _USER_URLS.items()},
    }


def full_user(world: World, who: User) -> Json:
    """What anybody may know of an account."""
    return user(world, who) | {
        "user_view_type": "public",
        "name": who.name or None,
        "company": None,
        "blog": "",
        "location": None,
        "email": who.email or None,
        "hireable": None,
        "bio": None,
        "public_repos": 0,
        "public_gists": 0,
        "followers": 0,
        "following": 0,
        "created_at": EPOCH,
        "updated_at": EPOCH,
    }


def own_user(world: World, who: User) -> Json:
    """What an account may know of itself."""
    counts = ("private_gists", "total_private_repos", "owned_private_repos", "disk_usage", "collaborators")
    return (
        full_user(world, who)
        | dict.fromkeys(counts, 0)
        | {
            "two_factor_authentication": True,
            "user_view_type": "private",
        }
    )


def minimal_repo(world: World, repo: Repo) -> Json:
    """The form inside of other answers."""
    url = repo_url(world, repo)
    return {
        "id": repo.id,
        "node_id": node_id("Repository", repo.id),
        "name": repo.name,
        "full_name": repo.full_name,
        "owner": user(world, repo.owner),
        "private": repo.private,
        "html_url": html_url(world, repo),
        "description": repo.description,
        "fork": repo.parent is not None,
        "url": url,
        **{name: url + path for name, path in _REPO_URLS.items()},
    }


def full_repo(world: World, repo: Repo, viewer: User | None = None) -> Json:
    """A repository by itself, and as head and base of a pull request."""
    at_git = f"{html_url(world, repo)}.git"
    role = world.role(repo, viewer)
    levels = {"admin": "admin", "maintain": "maintain", "push": "write", "triage": "triage", "pull": "read"}
    order = ("none", "read", "triage", "write", "maintain", "admin")
    answer = minimal_repo(world, repo) | {
        "clone_url": at_git,
        "git_url": at_git,
        "ssh_url": at_git,
        "svn_url": html_url(world, repo),
        "mirror_url": None,
        "homepage": None,
        "language": None,
        "license": None,
        "default_branch": repo.default_branch,
        "visibility": "private" if repo.private else "public",
        "archived": False,
        "disabled": False,
        "allow_forking": True,
        "is_template": False,
        "web_commit_signoff_required": False,
        "topics": [],
        "created_at": repo.created_at,
        "updated_at": repo.created_at,
        "pushed_at": repo.created_at,
        **dict.fromkeys(("has_projects", "has_wiki", "has_pages", "has_discussions", "has_downloads"), False),
        **dict.fromkeys(("forks", "forks_count", "size", "stargazers_count", "watchers", "watchers_count"), 0),
        **dict.fromkeys(("network_count", "subscribers_count"), 0),
        **SETTINGS,
        **repo.settings,
        "permissions": {name: order.index(role) >= order.index(need) for name, need in levels.items()},
    }
    count = sum(issue.state == "open" for issue in repo.issues.values())
    answer |= {"open_issues": count, "open_issues_count": count}
    parent = world.repo(repo.parent) if repo.parent else None
    if parent is not None:
        answer["parent"] = answer["source"] = full_repo(world, parent, viewer)
    return answer


def organization(world: World, login: str) -> Json:
    """An organisation inside of a team."""
    who = world.user(login, "Organization")
    url = f"{world.api}/orgs/{login}"
    return {
        "login": login,
        "id": who.id,
        "node_id": node_id("Organization", who.id),
        "url": url,
        "repos_url": f"{url}/repos",
        "events_url": f"{url}/events",
        "hooks_url": f"{url}/hooks",
        "issues_url": f"{url}/issues",
        "members_url": f"{url}/members{{/member}}",
        "public_members_url": f"{url}/public_members{{/member}}",
        "avatar_url": f"{world.base}/avatars/{who.id}",
        "description": "",
        "html_url": f"{world.base}/{login}",
        "has_organization_projects": False,
        "has_repository_projects": False,
        "public_repos": 0,
        "public_gists": 0,
        "followers": 0,
        "following": 0,
        "type": "Organization",
        "created_at": EPOCH,
        "updated_at": EPOCH,
        "archived_at": None,
    }


def team(world: World, which: Team) -> Json:
    url = f"{world.api}/orgs/{which.org}/teams/{which.slug}"
    return {
        "id": which.id,
        "node_id": node_id("Team", which.id),
        "url": url,
        "html_url": f"{world.base}/orgs/{which.org}/teams/{which.slug}",
        "name": which.slug,
        "slug": which.slug,
        "description": None,
        "privacy": "closed",
        "notification_setting": "notifications_enabled",
        "permission": "pull",
        "members_url": f"{url}/members{{/member}}",
        "repositories_url": f"{url}/repos",
        "type": "organization",
        "parent": None,
    }


def app(world: World, which: App) -> Json:
    return {
        "id": which.id,
        "slug": which.slug,
        "node_id": node_id("Integration", which.id),
        "owner": user(world, world.user("octo", "Organization")),
        "name": which.slug,
        "description": None,
        "external_url": world.base,
        "html_url": f"{world.base}/apps/{which.slug}",
        "created_at": EPOCH,
        "updated_at": EPOCH,
        "permissions": dict(which.permissions),
        "events": [],
    }


def label(world: World, repo: Repo, name: str) -> Json:
    known = repo.labels[name]
    return {
        "id": known["id"],
        "node_id": node_id("Label", known["id"]),
        "url": f"{repo_url(world, repo)}/labels/{name}",
        "name": name,
        "color": known["color"],
        "default": False,
        "description": known["description"],
    }


def known_label(world: World, repo: Repo, name: str, color: str = "ededed", description: str | None = None) -> str:
    """The label as the repository writes it; made if it is not there, as GitHub does for one put on an issue."""
    found = next((known for known in repo.labels if known.casefold() == name.casefold()), None)
    if found is not None:
        return found
    check_length("Label", "name", name, 50)
    check_length("Label", "description", description, 100)
    repo.labels[name] = {"id": world.next_id(), "color": color, "description": description}
    return name
