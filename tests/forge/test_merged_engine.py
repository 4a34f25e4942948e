"""After a merge: how to get what was merged, and which engine a name means while the work tree has another."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from metainfer.cli import app
from metainfer.forge.local import LocalForge
from metainfer.forge.setup import create_local_forge
from tests.forge.engines import ALICE, ENGINE, FOLDER, commit_on, engine_files, request


@pytest.fixture
def work(source_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work tree that holds an older engine, and a forge made from it."""
    monkeypatch.delenv("METAINFER_FORGE", raising=False)
    folder = tmp_path / "work"
    subprocess.run(["git", "clone", "--quiet", str(source_repo), str(folder)], check=True)
    git(folder, "config", "user.name", ALICE.name)
    git(folder, "config", "user.email", ALICE.email)
    write_engine(folder, "sha256:old")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "An engine")
    create_local_forge(folder, tmp_path / "forge.git")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def forge(work: Path, tmp_path: Path) -> LocalForge:
    return LocalForge(tmp_path / "forge.git")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def write_engine(root: Path, input_hash: str) -> None:
    for path, data in engine_files(input_hash).items():
        target = root / FOLDER / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def metainfer(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def merge_a_newer_one(forge: LocalForge) -> Result:
    forge.publish(request(forge, "sha256:new"))
    assert metainfer("pr", "approve", "1").exit_code == 0
    return metainfer("pr", "merge", "1")


def test_a_merge_says_how_to_pull_it_and_that_line_works(work: Path, forge: LocalForge) -> None:
    result = merge_a_newer_one(forge)
    lines = [line.removeprefix("next:").strip() for line in result.output.splitlines()]
    pull = next(line for line in lines if line.startswith("git pull"))
    assert lines[1] == pull
    assert f"metainfer release {ENGINE}" in lines
    subprocess.run(shlex.split(pull), cwd=work, check=True, capture_output=True)
    merged = forge.read_tree("main", FOLDER)
    assert {path: (work / path).read_bytes() for path in merged} == merged


@pytest.mark.parametrize("named", [ENGINE, f"engines/{ENGINE}", f"engines/{ENGINE}/"])
@pytest.mark.parametrize("command", [["verify"], ["gate", "spec"], ["bench"], ["serve"]])
def test_a_name_that_means_two_engines_says_which_is_used(
    work: Path, forge: LocalForge, command: list[str], named: str
) -> None:
    merge_a_newer_one(forge)
    stderr = metainfer(*command, named).stderr
    assert f"note: using {FOLDER.rstrip('/')} of this work tree" in stderr.replace(f"{work}/", "")
    assert f"git pull {forge.repo.git_dir} main" in stderr


def test_nothing_is_said_when_both_are_the_same(work: Path, forge: LocalForge) -> None:
    assert "note:" not in metainfer("verify", ENGINE).stderr
    merge_a_newer_one(forge)
    git(work, "pull", "--quiet", str(forge.repo.git_dir), "main")
    assert "note:" not in metainfer("verify", ENGINE).stderr


def test_where_the_work_tree_is_ahead_a_pull_would_bring_nothing(work: Path, forge: LocalForge) -> None:
    write_engine(work, "sha256:newer")
    stderr = metainfer("verify", ENGINE).stderr
    assert "git pull" not in stderr
    other = Path(stderr.splitlines()[0].rpartition(" ")[2])
    assert {path.relative_to(other).as_posix(): path.read_bytes() for path in other.rglob("*.*")} == engine_files(
        "sha256:old"
    )


def test_a_work_tree_without_a_forge_needs_none(work: Path) -> None:
    git(work, "config", "--unset", "metainfer.forge")
    assert metainfer("verify", ENGINE).stderr == ""


@pytest.mark.parametrize("named", ["only-merged", "engines/only-merged", "engines/only-merged/"])
def test_an_engine_that_only_the_forge_has_is_found_under_each_of_its_names(
    work: Path, forge: LocalForge, named: str
) -> None:
    files = engine_files(engine="only-merged")
    commit_on(forge, "main", {f"engines/only-merged/{path}": data for path, data in files.items()})
    metainfer("verify", named)
    [manifest] = work.glob(".metainfer/engines/*/only-merged/manifest.json")
    assert manifest.read_bytes() == files["manifest.json"]


@pytest.mark.parametrize("named", [ENGINE, f"engines/{ENGINE}", f"engines/{ENGINE}/"])
def test_a_release_takes_each_of_an_engines_names(forge: LocalForge, named: str) -> None:
    merge_a_newer_one(forge)
    result = metainfer("release", named)
    assert f"{ENGINE}/v0.1.0" in result.output, result.exception


def test_what_is_neither_a_folder_nor_a_name_is_told_apart(work: Path) -> None:
    error = metainfer("verify", "no/such/folder").exception
    assert "no/such/folder: no manifest.json there" in str(error)
