"""The Git servers that other tests push to behave as GitHub's does, seen through Git itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.github.bare import Bare, git_environment
from tests.github.git_server import GitHost, lighttpd_git_host, python_git_host

TOKEN = "t0ken"


@pytest.fixture(params=["python", pytest.param("lighttpd", marks=pytest.mark.github)], scope="module")
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitHost]:
    folder = tmp_path_factory.mktemp(request.param)
    root = folder / "repositories"
    running = python_git_host(root, TOKEN) if request.param == "python" else lighttpd_git_host(root, TOKEN, folder)
    with running as made:
        yield made


@pytest.fixture
def bare(host: GitHost, tmp_path: Path) -> Bare:
    return host.create(f"octo/{tmp_path.name}", {"README.md": b"# first\n"})


def address(host: GitHost, bare: Bare, token: str | None = TOKEN) -> str:
    url = host.address(f"octo/{bare.path.name.removesuffix('.git')}")
    return url.replace("://", f"://x-access-token:{token}@") if token else url


def git(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    who = ("-c", "user.name=Pat", "-c", "user.email=pat@example.org")
    environment = git_environment({"HOME": os.devnull, "GIT_ASKPASS": "true"})
    return subprocess.run(
        ["git", *who, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def clone(host: GitHost, bare: Bare, folder: Path) -> Path:
    done = git("clone", "--quiet", address(host, bare), str(folder), cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    return folder


def commit(work: Path, name: str, data: bytes) -> None:
    (work / name).write_bytes(data)
    git("add", ".", cwd=work)
    assert git("commit", "--quiet", "-m", name, cwd=work).returncode == 0


def test_a_clone_and_a_push_go_through(host: GitHost, bare: Bare, tmp_path: Path) -> None:
    work = clone(host, bare, tmp_path / "work")
    assert (work / "README.md").read_bytes() == b"# first\n"
    commit(work, "big.bin", os.urandom(3_000_000))  # above http.postBuffer: sent in chunks
    assert git("push", "--quiet", "origin", "HEAD:new", cwd=work).returncode == 0
    assert bare.tip("refs/heads/new") == git("rev-parse", "HEAD", cwd=work).stdout.strip()


@pytest.mark.parametrize("token", [None, "wrong"])
def test_without_the_token_nothing_is_read_or_written(host: GitHost, bare: Bare, tmp_path: Path, token: str) -> None:
    done = git("ls-remote", address(host, bare, token), cwd=tmp_path)
    assert done.returncode
    assert "Authentication failed" in done.stderr
    work = clone(host, bare, tmp_path / "work")
    commit(work, "x", b"x")
    assert git("push", address(host, bare, token), "HEAD:new", cwd=work).returncode
    assert bare.tip("refs/heads/new") is None


def test_a_push_that_would_lose_commits_is_refused_unless_it_is_forced(
    host: GitHost, bare: Bare, tmp_path: Path
) -> None:
    work = clone(host, bare, tmp_path / "work")
    bare.commit("main", {"theirs": b"x"})
    commit(work, "mine", b"x")
    refused = git("push", "origin", "HEAD:main", cwd=work)
    assert refused.returncode
    assert "fetch first" in refused.stderr
    assert git("push", "--force", "origin", "HEAD:main", cwd=work).returncode == 0


def test_a_lease_holds_only_for_the_tip_that_it_names(host: GitHost, bare: Bare, tmp_path: Path) -> None:
    work = clone(host, bare, tmp_path / "work")
    before = bare.tip("refs/heads/main")
    bare.commit("main", {"theirs": b"x"})
    commit(work, "mine", b"x")
    stale = git("push", f"--force-with-lease=refs/heads/main:{before}", "origin", "HEAD:main", cwd=work)
    assert "stale info" in stale.stderr
    lease = f"--force-with-lease=refs/heads/main:{bare.tip('refs/heads/main')}"
    assert git("push", lease, "origin", "HEAD:main", cwd=work).returncode == 0


def test_a_protected_branch_and_the_refs_of_pull_requests_take_no_push(
    host: GitHost, bare: Bare, tmp_path: Path
) -> None:
    bare.protect(["main"])
    work = clone(host, bare, tmp_path / "work")
    commit(work, "mine", b"x")
    refused = git("push", "origin", "HEAD:main", cwd=work)
    assert "[remote rejected]" in refused.stderr
    assert "GH006: Protected branch update failed" in refused.stderr
    assert "[remote rejected]" in git("push", "origin", "HEAD:refs/pull/1/head", cwd=work).stderr
    assert git("push", "origin", "HEAD:other", cwd=work).returncode == 0


def test_a_commit_on_no_branch_can_still_be_fetched(host: GitHost, bare: Bare, tmp_path: Path) -> None:
    lost = bare.commit("gone", {"x": b"x"}, start=bare.tip("refs/heads/main"))
    bare.set_ref("refs/heads/gone", None)
    work = clone(host, bare, tmp_path / "work")
    assert git("fetch", "--quiet", "origin", lost, cwd=work).returncode == 0


def test_a_repository_that_is_not_there_is_not_found(host: GitHost, tmp_path: Path) -> None:
    url = host.address("octo/nothing").replace("://", f"://x-access-token:{TOKEN}@")
    done = git("ls-remote", url, cwd=tmp_path)
    assert done.returncode
    assert "not found" in done.stderr
