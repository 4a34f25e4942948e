"""The stub behaves as GitHub does where bots were seen to go wrong; asked by plain HTTP and by PyGithub."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import Any

import github
import httpx
import pytest

from tests.github.bare import git_environment
from tests.github.stub import Repo, Stub

APPROVE = {"event": "APPROVE"}


class Client:
    """Plain HTTP on one repository as one person."""

    def __init__(self, stub: Stub, repo: Repo, login: str) -> None:
        self.token = stub.token(login)
        self.http = httpx.Client(base_url=stub.api_url, headers={"Authorization": f"Bearer {self.token}"})
        self.root = f"/repos/{repo.full_name}"

    def call(self, verb: str, path: str, status: int, body: Any = None) -> Any:
        """The JSON of an answer that must have this status."""
        got = self.http.request(verb, self.root + path, json=body)
        assert got.status_code == status, got.text
        return got.json() if got.content else None

    def open(self, head: str, status: int = 201, **more: Any) -> Any:
        return self.call("POST", "/pulls", status, {"title": "T", "head": head, "base": "main", **more})


@pytest.fixture
def repo(stub: Stub, slug: str) -> Repo:
    """main, and a branch `work` that is one commit ahead."""
    made = stub.repo(slug, ann="write", rob="read", ada="admin", bot="write")
    made.bare.commit("work", {"a.txt": b"a\n"}, start=made.bare.tip("refs/heads/main"))
    return made


@pytest.fixture
def bot(stub: Stub, repo: Repo) -> Client:
    return Client(stub, repo, "bot")


@pytest.fixture
def ann(stub: Stub, repo: Repo) -> Client:
    return Client(stub, repo, "ann")


def pygithub(stub: Stub, token: str) -> github.Github:
    """Without its waits between calls."""
    auth = github.Auth.Token(token)
    return github.Github(
        auth=auth, base_url=stub.api_url, per_page=2, seconds_between_requests=0, seconds_between_writes=0
    )


def messages(answer: Any) -> str:
    return "; ".join(each["message"] if isinstance(each, dict) else each for each in answer["errors"])


def test_a_second_pull_request_for_a_branch_is_refused(bot: Client) -> None:
    assert bot.open("work")["number"] == 1
    assert "already exists for octo:work" in messages(bot.open("octo:work", 422))


def test_a_pull_request_needs_a_branch_that_brings_something(bot: Client, repo: Repo) -> None:
    assert bot.open("nowhere", 422)["errors"][0]["field"] == "head"
    assert bot.open("work", 422, base="nowhere")["errors"][0]["field"] == "base"
    repo.bare.set_ref("refs/heads/same", repo.bare.tip("refs/heads/main"))
    assert "No commits between main and same" in messages(bot.open("same", 422))


def test_lists_filter_by_owner_and_branch_and_a_branch_alone_filters_nothing(bot: Client, repo: Repo) -> None:
    repo.bare.commit("other", {"b": b"b"}, start=repo.bare.tip("refs/heads/main"))
    bot.open("work")
    bot.open("other")

    def found(query: str) -> list[int]:
        return [pull["number"] for pull in bot.call("GET", f"/pulls?{query}", 200)]

    assert found("head=octo:work&base=main&state=open") == [1]
    assert found("head=octo:none") == []
    assert found("head=work") == [2, 1]  # as on GitHub: without the owner it is passed over
    assert found("sort=created&direction=asc") == [1, 2]


def test_a_push_moves_the_head_and_git_can_fetch_it(stub: Stub, bot: Client, repo: Repo, tmp_path: Path) -> None:
    bot.open("work")
    old = bot.call("GET", "/pulls/1", 200)["head"]["sha"]
    url = f"{stub.url}/{repo.full_name}.git".replace("://", f"://x-access-token:{bot.token}@")

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=B", "-c", "user.email=bot@example.org", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=git_environment(), check=True, capture_output=True, text=True
        ).stdout

    git("clone", "--quiet", "--branch", "work", url, ".")
    git("commit", "--quiet", "--allow-empty", "-m", "More")
    git("push", "--quiet", "origin", "work")
    new = bot.call("GET", "/pulls/1", 200)["head"]["sha"]
    assert new == git("rev-parse", "HEAD").strip() != old
    assert new in git("ls-remote", "origin", "refs/pull/1/head")


def test_a_deleted_branch_closes_and_a_forced_one_cannot_be_opened_again(bot: Client, repo: Repo) -> None:
    bot.open("work")
    tip = repo.bare.tip("refs/heads/work")
    repo.bare.set_ref("refs/heads/work", None)
    assert bot.call("GET", "/pulls/1", 200)["state"] == "closed"
    assert "deleted" in messages(bot.call("PATCH", "/pulls/1", 422, {"state": "open"}))
    repo.bare.set_ref("refs/heads/work", tip)
    assert bot.call("PATCH", "/pulls/1", 200, {"state": "open"})["state"] == "open"
    bot.call("PATCH", "/pulls/1", 200, {"state": "closed"})
    repo.bare.set_ref("refs/heads/work", None)
    repo.bare.commit("work", {"z": b"z"}, start=repo.bare.tip("refs/heads/main"))
    assert "force-pushed" in messages(bot.call("PATCH", "/pulls/1", 422, {"state": "open"}))


def test_a_base_that_has_the_head_merges_and_a_head_set_back_to_the_base_closes(bot: Client, repo: Repo) -> None:
    bot.open("work")
    repo.bare.set_ref("refs/heads/main", repo.bare.tip("refs/heads/work"))
    assert bot.call("GET", "/pulls/1", 200)["merged"] is True
    repo.bare.commit("work", {"b": b"b"})
    bot.open("work")
    repo.bare.set_ref("refs/heads/work", repo.bare.tip("refs/heads/main"))
    pull = bot.call("GET", "/pulls/2", 200)
    assert (pull["state"], pull["merged"]) == ("closed", False)


def test_a_merge_wants_the_head_that_was_seen(ann: Client, bot: Client, repo: Repo) -> None:
    head = bot.open("work")["head"]["sha"]
    repo.bare.commit("work", {"b": b"b"})
    assert "modified" in ann.call("PUT", "/pulls/1/merge", 409, {"sha": head})["message"]
    now = ann.call("GET", "/pulls/1", 200)["head"]["sha"]
    merged = ann.call("PUT", "/pulls/1/merge", 200, {"sha": now})
    assert repo.bare.tip("refs/heads/main") == merged["sha"]
    assert repo.bare.is_ancestor(now, merged["sha"])
    ann.call("PUT", "/pulls/1/merge", 405, {"sha": now})


def test_a_conflict_cannot_be_merged(ann: Client, bot: Client, repo: Repo) -> None:
    bot.open("work")
    repo.bare.commit("main", {"a.txt": b"other\n"})
    assert ann.call("GET", "/pulls/1", 200)["mergeable_state"] == "dirty"
    ann.call("PUT", "/pulls/1/merge", 405, {})


def test_nobody_approves_their_own(bot: Client, ann: Client) -> None:
    bot.open("work")
    assert "your own" in messages(bot.call("POST", "/pulls/1/reviews", 422, APPROVE))
    assert ann.call("POST", "/pulls/1/reviews", 200, APPROVE)["state"] == "APPROVED"


def protect(stub: Stub, repo: Repo, **reviews: Any) -> None:
    body = {
        "required_status_checks": {"strict": False, "contexts": ["ckb-review"]},
        "enforce_admins": True,
        "required_pull_request_reviews": {"required_approving_review_count": 1, **reviews},
        "restrictions": None,
    }
    Client(stub, repo, "ada").call("PUT", "/branches/main/protection", 200, body)


def test_protection_wants_checks_and_approvals_of_those_who_may_write(
    stub: Stub, repo: Repo, bot: Client, ann: Client
) -> None:
    protect(stub, repo)
    head = bot.open("work")["head"]["sha"]
    Client(stub, repo, "rob").call("POST", "/pulls/1/reviews", 200, APPROVE)
    said = ann.call("PUT", "/pulls/1/merge", 405, {})["message"]
    assert 'status check "ckb-review" is expected' in said
    assert "At least 1 approving review" in said
    assert ann.call("GET", "/pulls/1", 200)["mergeable_state"] == "blocked"
    bot.call("POST", f"/statuses/{head}", 201, {"state": "success", "context": "ckb-review"})
    ann.call("POST", "/pulls/1/reviews", 200, APPROVE)
    ann.call("PUT", "/pulls/1/merge", 200, {"sha": head})


def test_stale_approvals_are_dismissed_by_a_push(stub: Stub, repo: Repo, bot: Client, ann: Client) -> None:
    protect(stub, repo, dismiss_stale_reviews=True)
    bot.open("work")
    ann.call("POST", "/pulls/1/reviews", 200, APPROVE)
    repo.bare.commit("work", {"b": b"b"})
    assert [review["state"] for review in ann.call("GET", "/pulls/1/reviews", 200)] == ["DISMISSED"]


def test_code_owners_are_read_from_the_base_and_teams_count(stub: Stub, repo: Repo, bot: Client, ann: Client) -> None:
    owners = {".github/CODEOWNERS": b"/ckb/ @octo/knowledge\n"}
    repo.bare.commit("main", owners)
    repo.bare.commit("work", {**owners, "ckb/x.yaml": b"x"})
    stub.team("octo", "knowledge", {"kim": "active"}, **{repo.name: "write"})
    protect(stub, repo, require_code_owner_reviews=True)
    head = bot.open("work")["head"]["sha"]
    bot.call("POST", f"/statuses/{head}", 201, {"state": "success", "context": "ckb-review"})
    ann.call("POST", "/pulls/1/reviews", 200, APPROVE)
    assert "code owner" in ann.call("PUT", "/pulls/1/merge", 405, {})["message"]
    Client(stub, repo, "kim").call("POST", "/pulls/1/reviews", 200, APPROVE)
    ann.call("PUT", "/pulls/1/merge", 200, {})


def test_a_fork_opens_a_pull_request_that_names_it(stub: Stub, repo: Repo) -> None:
    fork = stub.repo(f"eve/{repo.name}", fork_of=repo.full_name)
    fork.bare.commit("metainfer/tiny", {"evil": b"x"}, start=fork.bare.tip("refs/heads/main"))
    eve = Client(stub, repo, "eve")
    pull = eve.open("eve:metainfer/tiny")
    assert pull["head"]["repo"]["full_name"] == fork.full_name
    assert pull["head"]["label"] == "eve:metainfer/tiny"
    eve.call("PUT", "/pulls/1/merge", 403, {})
    assert repo.bare.commit_at("refs/pull/1/head") == fork.bare.tip("refs/heads/metainfer/tiny")


def test_who_may_not_see_gets_404_and_who_may_not_write_403(stub: Stub, slug: str) -> None:
    repo = stub.repo(slug, private=True, rob="read")
    assert Client(stub, repo, "stranger").call("GET", "", 404)["message"] == "Not Found"
    Client(stub, repo, "rob").call("POST", "/git/refs", 403, {"ref": "refs/heads/x", "sha": "0" * 40})
    bad = httpx.get(f"{stub.api_url}/repos/{slug}", headers={"Authorization": "Bearer nonsense"})
    assert (bad.status_code, bad.json()["message"]) == (401, "Bad credentials")


def test_a_fine_grained_token_is_told_what_it_lacks(stub: Stub, repo: Repo) -> None:
    token = stub.token("ann", "fine-grained", {"contents": "write", "pull_requests": "read"})
    url = f"{stub.api_url}/repos/{repo.full_name}/pulls"
    got = httpx.post(
        url, json={"title": "T", "head": "work", "base": "main"}, headers={"Authorization": f"token {token}"}
    )
    assert got.status_code == 403
    assert got.headers["X-Accepted-GitHub-Permissions"] == "pull_requests=write"


def test_check_runs_are_for_apps(stub: Stub, repo: Repo, bot: Client) -> None:
    head = repo.bare.tip("refs/heads/work")
    body = {"name": "ckb-review", "head_sha": head, "conclusion": "success"}
    assert "GitHub App" in bot.call("POST", "/check-runs", 403, body)["message"]
    app = pygithub(stub, stub.actions_token(repo.full_name, checks="write"))
    run = app.get_repo(repo.full_name).create_check_run(**body)
    assert (run.status, run.conclusion) == ("completed", "success")
    with pytest.raises(github.GithubException, match="integration"):
        app.get_user().login  # noqa: B018


def test_long_lists_come_in_pages_that_pygithub_follows(stub: Stub, repo: Repo, bot: Client) -> None:
    for n in range(5):
        bot.call("POST", "/issues", 201, {"title": f"Issue {n}"})
    got = bot.http.get(f"{bot.root}/issues?per_page=2&page=2&state=all")
    assert {rel: link["url"].rpartition("=")[2] for rel, link in got.links.items()} == {
        "prev": "1", "first": "1", "next": "3", "last": "3",
    }  # fmt: skip
    hub = pygithub(stub, bot.token)
    assert len(list(hub.get_repo(repo.full_name).get_issues())) == 5


def test_bodies_that_github_does_not_take_are_refused(bot: Client) -> None:
    long = "x" * 65_537
    assert "too long (maximum is 65536" in messages(bot.open("work", 422, body=long))
    bot.open("work")
    assert "too long" in messages(bot.call("PATCH", "/pulls/1", 422, {"body": long}))
    assert "too long" in messages(bot.call("POST", "/issues/1/comments", 422, {"body": long}))
    bot.call("POST", "/issues/1/comments", 422, {"body": "x", "colour": "red"})


def test_a_release_takes_files_and_gives_them_back(stub: Stub, repo: Repo, ann: Client) -> None:
    hub = pygithub(stub, ann.token)
    tagged = repo.bare.tip("refs/heads/main")
    repo.bare.set_ref("refs/tags/tiny/v1.0.0", tagged)
    release = hub.get_repo(repo.full_name).create_git_release("tiny/v1.0.0", "tiny 1.0.0", "Notes", draft=True)
    asset = release.upload_asset_from_memory(io.BytesIO(b"bundle"), 6, "tiny.tar.gz", "application/gzip")
    release.update_release("tiny 1.0.0", "Notes", draft=False)
    assert hub.get_repo(repo.full_name).get_release("tiny/v1.0.0").name == "tiny 1.0.0"
    got = httpx.get(asset.url, headers={"Accept": "application/octet-stream"})
    assert got.content == b"bundle"


def test_the_primary_limit_ends_with_a_403(stub: Stub, repo: Repo) -> None:
    token = stub.token("ann")
    stub.world.tokens[token].remaining = 1
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{stub.api_url}/rate_limit", headers=headers).headers["X-RateLimit-Remaining"] == "0"
    got = httpx.get(f"{stub.api_url}/repos/{repo.full_name}", headers=headers)
    assert got.status_code == 403
    assert "rate limit exceeded" in got.json()["message"]


def test_a_jobs_token_talks_on_pull_requests_by_the_right_for_those_and_on_issues_by_the_other(
    stub: Stub, repo: Repo, bot: Client
) -> None:
    """What GitHub's lists of permissions say of each call; a job that asks for less than it does stops there."""
    pull, issue = bot.open("work")["number"], bot.call("POST", "/issues", 201, {"title": "I"})["number"]
    job = Client(stub, repo, "bot")
    job.http.headers["Authorization"] = f"Bearer {stub.actions_token(repo.full_name, pull_requests='write')}"
    said = job.call("POST", f"/issues/{pull}/comments", 201, {"body": "x"})
    job.call("PATCH", f"/issues/comments/{said['id']}", 200, {"body": "y"})
    job.call("POST", f"/issues/{pull}/labels", 200, {"labels": ["new"]})
    job.call("GET", f"/issues/{pull}/comments", 200)
    job.call("POST", f"/issues/{issue}/comments", 403, {"body": "x"})
    job.call("GET", f"/issues/{pull}", 403)
    job.call("GET", "/issues", 403)


def test_a_jobs_token_sees_drafts_of_releases_if_it_may_write_contents(stub: Stub, repo: Repo, bot: Client) -> None:
    bot.call("POST", "/releases", 201, {"tag_name": "v1", "draft": True})
    for level, count in (("write", 1), ("read", 0)):
        job = Client(stub, repo, "bot")
        job.http.headers["Authorization"] = f"Bearer {stub.actions_token(repo.full_name, contents=level)}"
        assert len(job.call("GET", "/releases", 200)) == count


def test_an_issue_tells_who_did_what_to_it(bot: Client, ann: Client) -> None:
    number = bot.open("work")["number"]
    ann.call("POST", f"/issues/{number}/labels", 200, {"labels": ["generate"]})
    ann.call("DELETE", f"/issues/{number}/labels/generate", 200)
    ann.call("PATCH", f"/pulls/{number}", 200, {"state": "closed"})
    bot.call("PATCH", f"/pulls/{number}", 200, {"state": "open"})
    events = bot.call("GET", f"/issues/{number}/events", 200)
    told = [(each["event"], each["actor"]["login"], (each.get("label") or {}).get("name")) for each in events]
    assert told == [
        ("labeled", "ann", "generate"),
        ("unlabeled", "ann", "generate"),
        ("closed", "ann", None),
        ("reopened", "bot", None),
    ]


def test_runs_of_a_workflow_are_told_the_newest_first_and_by_how_they_ended(stub: Stub, slug: str) -> None:
    repo = stub.repo(slug, {".github/workflows/a.yml": b"on: push\n"}, ann="write")
    sha = repo.bare.tip("refs/heads/main") or ""
    runs = [repo.start_run(stub.world, "a.yml", "push", sha) for _ in range(3)]
    runs[0].end("success")
    runs[1].end("failure")
    repo.start_run(stub.world, "b.yml", "push", sha)
    job = Client(stub, repo, "ann")
    job.http.headers["Authorization"] = f"Bearer {stub.actions_token(slug, actions='read')}"
    told = job.call("GET", "/actions/workflows/a.yml/runs", 200)["workflow_runs"]
    assert [(run["run_number"], run["conclusion"]) for run in told] == [(3, None), (2, "failure"), (1, "success")]
    [good] = job.call("GET", "/actions/workflows/a.yml/runs?status=success&per_page=1", 200)["workflow_runs"]
    assert good["id"] == runs[0].id
    job.call("GET", "/actions/workflows/c.yml/runs", 404)
