"""The same check where there is no GitHub: its exit code is the verdict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from metainfer.errors import ExitCode
from metainfer.forge.local import LocalForge
from metainfer.forge.setup import create_local_forge
from tests.forge.engines import ALICE, BOB, KNOWLEDGE, request


@pytest.fixture
def forge(tmp_path: Path) -> LocalForge:
    repo = tmp_path / "repo"
    (repo / "ckb/family/rmsnorm").mkdir(parents=True)
    (repo / "ckb/family/rmsnorm/contract.yaml").write_text("id: family/rmsnorm\nversion: 1\n")
    git = ["git", "-C", str(repo), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(repo)], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "First"], check=True)
    return create_local_forge(repo, tmp_path / "forge.git", ALICE.email)


def review(forge: LocalForge, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "metainfer", "ci", "ckb-review", *arguments, "--forge", forge.address()]
    cwd = forge.repo.git_dir.parent / "repo"
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_it_waits_for_the_owner_and_passes_with_their_approval_of_the_head(forge: LocalForge) -> None:
    forge.publish(request(forge, proposals=KNOWLEDGE))
    waiting = review(forge, "1")
    assert waiting.returncode == ExitCode.RED
    assert f"pending: waits for {ALICE.email}: ckb/family/rmsnorm/contract.yaml" in waiting.stdout
    forge.approve(1, BOB)
    assert review(forge, "1").returncode == ExitCode.RED
    forge.approve(1, ALICE)
    passed = review(forge, "1")
    assert passed.returncode == ExitCode.OK, passed.stdout
    assert f"success: approved by {ALICE.email} at" in passed.stdout


def test_an_engine_alone_needs_no_owner_of_knowledge(forge: LocalForge) -> None:
    forge.publish(request(forge))
    assert "success: no change of knowledge" in review(forge, "1").stdout


def test_without_a_number_it_says_what_is_missing(forge: LocalForge) -> None:
    done = review(forge)
    assert done.returncode == ExitCode.BAD_INPUT
    assert "ckb-review N" in done.stderr
