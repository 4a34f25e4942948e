"""A fresh bare repository for each test, copied from one that is made once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from metainfer.forge.local import LocalForge
from metainfer.forge.setup import create_local_forge
from tests.forge.engines import ALICE, copy_forge


@pytest.fixture(scope="session")
def source_repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small work tree with one commit and one piece of knowledge."""
    folder = tmp_path_factory.mktemp("source")

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch=main")
    git("config", "user.name", "Source Owner")
    git("config", "user.email", "owner@example.org")
    (folder / "ckb/family/rmsnorm").mkdir(parents=True)
    (folder / "ckb/family/rmsnorm/contract.yaml").write_text("id: family/rmsnorm\nversion: 1\n")
    (folder / "README.md").write_text("# repository\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "First")
    return folder


@pytest.fixture(scope="session")
def template(source_repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "forge.git"
    create_local_forge(source_repo, folder, ALICE.email)
    return folder


@pytest.fixture
def forge(template: Path, tmp_path: Path) -> LocalForge:
    """A forge that Alice owns, with nothing in it but main."""
    return copy_forge(template, tmp_path / "forge.git")
