"""A forge that somebody damaged by hand says which ref it is, and what puts it back."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from metainfer.forge.local import LocalForge
from metainfer.forge.plumbing import GitError
from metainfer.forge.records import PULLS
from tests.forge.engines import refs, request

FIRST = f"{PULLS}/1"


def read_all(forge: LocalForge) -> object:
    return forge.list("all")


def read_one(forge: LocalForge) -> object:
    return forge.get(1)


READS = pytest.mark.parametrize("read", [read_all, read_one])
Read = Callable[[LocalForge], object]


def damage(forge: LocalForge, content: str, ref: str = FIRST) -> Path:
    """Write a ref's file by hand, as an editor or a failing disk would."""
    file = forge.repo.git_dir / ref
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


@READS
@pytest.mark.parametrize("content", ["no object's name\n", "", "0" * 40 + "\n"])
def test_a_broken_ref_is_no_forge_without_pull_requests(forge: LocalForge, read: Read, content: str) -> None:
    forge.publish(request(forge))
    damage(forge, content)
    with pytest.raises(GitError, match=f"{FIRST} in .* is broken. To put it back: .*update-ref {FIRST} COMMIT"):
        read(forge)


@READS
def test_a_ref_to_an_object_that_is_gone_is_named(forge: LocalForge, read: Read) -> None:
    damage(forge, "12345678" * 5 + "\n")
    with pytest.raises(GitError, match=f"{FIRST} in .* holds 123456781234, a missing object .*update-ref"):
        read(forge)


@READS
def test_a_ref_to_something_else_is_named(forge: LocalForge, read: Read) -> None:
    damage(forge, forge.repo.object_at("main", "README.md") or "")
    with pytest.raises(GitError, match=rf"{FIRST} in .* a blob that .* \(it should be a commit\)"):
        read(forge)
    damage(forge, forge.base_sha())
    with pytest.raises(GitError, match=rf"{FIRST} in .* a commit that .* \(it has no pull.json\)"):
        read(forge)


def test_a_ref_that_is_no_number_is_named(forge: LocalForge) -> None:
    forge.publish(request(forge))
    damage(forge, forge.base_sha(), f"{PULLS}/abc")
    with pytest.raises(GitError, match=f"{PULLS}/abc in .*'abc' is not .* `git .*update-ref -d {PULLS}/abc`"):
        forge.list("all")


def test_what_the_message_says_puts_a_broken_ref_back(forge: LocalForge) -> None:
    forge.publish(request(forge))
    before = refs(forge)
    damage(forge, "junk").unlink()
    git = ["git", f"--git-dir={forge.repo.git_dir}"]
    found = subprocess.run([*git, "fsck", "--unreachable"], capture_output=True, text=True, check=True).stdout
    lost = [line.split()[2] for line in found.splitlines() if line.startswith("unreachable commit")]
    records = [sha for sha in lost if forge.repo.read("log", "-1", "--format=%s", sha).startswith(b"#1: ")]
    subprocess.run([*git, "update-ref", FIRST, *records], check=True)
    assert refs(forge) == before
    assert forge.get(1).state == "open"


def test_a_ref_that_is_missing_between_others_is_named(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.publish(request(forge, engine="other-cpu"))
    forge.repo.read("update-ref", "-d", FIRST)
    with pytest.raises(GitError, match=f"{FIRST} in .* was removed by hand. To put it back"):
        forge.list("all")
