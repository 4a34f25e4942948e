"""The recipe of CONTRIBUTING.md for rolling an engine back, step by step with Git and a real forge."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from metainfer.forge.local import LocalForge
from metainfer.forge.protocol import Status
from metainfer.forge.setup import create_local_forge
from metainfer.release.tag import release
from tests.forge.engines import ALICE, ENGINE, request


class WorkTree:
    """A person's clone, and the forge that was made from it."""

    def __init__(self, source: Path, folder: Path) -> None:
        subprocess.run(["git", "clone", "--quiet", str(source), str(folder / "work")], check=True)
        self.folder = folder / "work"
        self.git("config", "user.name", ALICE.name)
        self.git("config", "user.email", ALICE.email)
        self.forge = create_local_forge(self.folder, folder / "forge.git", ALICE.email)

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", "-C", str(self.folder), *arguments], check=True, capture_output=True)

    def roll_back(self) -> None:
        merge = self.forge.base_sha()
        self.git("pull", "--quiet", self.forge.address(), "main")
        self.git("revert", "--no-edit", "-m", "1", merge)
        self.git("push", "--quiet", self.forge.address(), "HEAD:main")


@pytest.fixture
def work(source_repo: Path, tmp_path: Path) -> WorkTree:
    return WorkTree(source_repo, tmp_path)


def merge(forge: LocalForge, input_hash: str) -> None:
    number = forge.publish(request(forge, input_hash)).number
    assert number is not None
    forge.approve(number, ALICE)
    forge.merge(number, ALICE)


def test_the_engine_before_is_back_and_can_be_released_again(work: WorkTree) -> None:
    merge(work.forge, "sha256:good")
    release(work.forge, ENGINE, ALICE)
    before = work.forge.read_tree("main", "engines/")
    merge(work.forge, "sha256:bad")
    release(work.forge, ENGINE, ALICE)
    work.roll_back()
    assert work.forge.read_tree("main", "engines/") == before
    assert release(work.forge, ENGINE, ALICE).tag == f"{ENGINE}/v0.1.2"
    assert work.forge.preview(ENGINE, "sha256:good").status is Status.UNCHANGED


@pytest.mark.parametrize("earlier", [["sha256:good"], []])
def test_closing_the_next_proposal_makes_a_rollback_last(work: WorkTree, earlier: list[str]) -> None:
    for input_hash in (*earlier, "sha256:bad"):
        merge(work.forge, input_hash)
    work.roll_back()
    again = work.forge.publish(request(work.forge, "sha256:bad"))
    assert again.status is Status.CREATED  # the revert alone does not stop the bot
    assert again.number is not None
    work.forge.close(again.number, ALICE, "rolled back")
    assert work.forge.publish(request(work.forge, "sha256:bad")).status is Status.CLOSED
    merge(work.forge, "sha256:mended")
    assert work.forge.preview(ENGINE, "sha256:mended").status is Status.UNCHANGED
