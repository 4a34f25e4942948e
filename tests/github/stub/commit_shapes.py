"""Commits, files, refs and tags as the API's JSON."""

from __future__ import annotations

from urllib.parse import quote

from tests.github.stub.diffs import ChangedFile, Commit, commits, differences, patch
from tests.github.stub.refusals import Refusal
from tests.github.stub.shapes import Json, html_url, node_id, repo_url, user
from tests.github.stub.world import Repo, World

UNSIGNED = {"verified": False, "reason": "unsigned", "signature": None, "payload": None, "verified_at": None}


def commit_json(world: World, repo: Repo, commit: Commit) -> Json:
    """A commit with the accounts that its addresses belong to."""
    url = f"{repo_url(world, repo)}/commits/{commit.sha}"
    author, committer = world.by_email(commit.author[1]), world.by_email(commit.committer[1])
    return {
        "sha": commit.sha,
        "node_id": node_id("Commit", int(commit.sha[:8], 16)),
        "url": url,
        "html_url": f"{html_url(world, repo)}/commit/{commit.sha}",
        "comments_url": f"{url}/comments",
        "commit": {
            "url": f"{repo_url(world, repo)}/git/commits/{commit.sha}",
            "author": _person(commit.author),
            "committer": _person(commit.committer),
            "message": commit.message,
            "comment_count": 0,
            "tree": _tree(world, repo, commit),
            "verification": UNSIGNED,
        },
        "author": user(world, author) if author else None,
        "committer": user(world, committer) if committer else None,
        "parents": [
            {
                "sha": parent,
                "url": f"{repo_url(world, repo)}/commits/{parent}",
                "html_url": f"{html_url(world, repo)}/commit/{parent}",
            }
            for parent in commit.parents
        ],
    }


def commit_with_files(world: World, repo: Repo, sha: str) -> Json:
    """One commit, with what it changes."""
    commit = one_commit(repo, sha)
    before = commit.parents[0] if commit.parents else repo.bare.git("hash-object", "-t", "tree", "--stdin")
    files = differences(repo.bare, before, sha)
    added, removed = sum(file.additions for file in files), sum(file.deletions for file in files)
    return commit_json(world, repo, commit) | {
        "stats": {"additions": added, "deletions": removed, "total": added + removed},
        "files": [file_json(world, repo, before, sha, file) for file in files],
    }


def git_commit_json(world: World, repo: Repo, sha: str) -> Json:
    """A commit as an object of Git."""
    commit = one_commit(repo, sha)
    url = f"{repo_url(world, repo)}/git/commits"
    html = f"{html_url(world, repo)}/commit"
    return {
        "sha": commit.sha,
        "node_id": node_id("Commit", int(commit.sha[:8], 16)),
        "url": f"{url}/{commit.sha}",
        "html_url": f"{html}/{commit.sha}",
        "author": _person(commit.author),
        "committer": _person(commit.committer),
        "tree": _tree(world, repo, commit),
        "message": commit.message,
        "parents": [
            {"sha": parent, "url": f"{url}/{parent}", "html_url": f"{html}/{parent}"} for parent in commit.parents
        ],
        "verification": UNSIGNED,
    }


def one_commit(repo: Repo, revision: str) -> Commit:
    """The commit that a sha, branch or tag names; 422 as GitHub says it."""
    sha = resolve(repo, revision)
    return commits(repo.bare, sha, limit=1)[0]


def resolve(repo: Repo, revision: str) -> str:
    """The sha of a branch, tag, or commit."""
    names = (f"refs/heads/{revision}", f"refs/tags/{revision}", revision)
    found = next((sha for sha in map(repo.bare.commit_at, names) if sha), None)
    if found is None:
        raise Refusal(422, f"No commit found for SHA: {revision}")
    return found


def file_json(world: World, repo: Repo, old: str, new: str, file: ChangedFile) -> Json:
    """One file of a difference."""
    path = quote(file.path)
    answer = {
        "sha": file.sha,
        "filename": file.path,
        "status": file.status,
        "additions": file.additions,
        "deletions": file.deletions,
        "changes": file.additions + file.deletions,
        "blob_url": f"{html_url(world, repo)}/blob/{new}/{path}",
        "raw_url": f"{html_url(world, repo)}/raw/{new}/{path}",
        "contents_url": f"{repo_url(world, repo)}/contents/{path}?ref={new}",
    }
    if (hunks := patch(repo.bare, old, new, file)) is not None:
        answer["patch"] = hunks
    if file.previous:
        answer["previous_filename"] = file.previous
    return answer


def ref_json(world: World, repo: Repo, ref: str) -> Json:
    """A ref by its full name."""
    sha = repo.bare.tip(ref)
    assert sha is not None
    kind = repo.bare.git("cat-file", "-t", sha)
    return {
        "ref": ref,
        "node_id": node_id("Ref", int(sha[:8], 16)),
        "url": f"{repo_url(world, repo)}/git/{ref}",
        "object": {"type": kind, "sha": sha, "url": f"{repo_url(world, repo)}/git/{kind}s/{sha}"},
    }


def tag_json(world: World, repo: Repo, sha: str) -> Json:
    """An annotated tag."""
    head, _, message = repo.bare.git("cat-file", "tag", sha).partition("\n\n")
    fields = dict(line.partition(" ")[::2] for line in head.splitlines())
    name, _, rest = fields["tagger"].partition(" <")
    email, _, when = rest.partition("> ")
    seconds = when.split()[0]
    return {
        "sha": sha,
        "node_id": node_id("Tag", int(sha[:8], 16)),
        "url": f"{repo_url(world, repo)}/git/tags/{sha}",
        "tag": fields["tag"],
        "message": message,
        "tagger": {"name": name, "email": email, "date": _iso(seconds)},
        "object": {
            "type": fields["type"],
            "sha": fields["object"],
            "url": f"{repo_url(world, repo)}/git/{fields['type']}s/{fields['object']}",
        },
        "verification": UNSIGNED,
    }


def _iso(seconds: str) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _person(who: tuple[str, str, str]) -> Json:
    return {"name": who[0], "email": who[1], "date": who[2]}


def _tree(world: World, repo: Repo, commit: Commit) -> Json:
    return {"sha": commit.tree, "url": f"{repo_url(world, repo)}/git/trees/{commit.tree}"}
