"""A second `metainfer demo` in the same folder: what the first one left there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from metainfer.commands.context import Workspace
from metainfer.commands.demo import drop_goals, scratch_clone
from metainfer.errors import InputError
from metainfer.forge.local import LocalForge
from metainfer.forge.setup import create_local_forge
from metainfer.release.tag import release
from tests.forge.engines import ALICE, refs, request


def start_demo(source: Path, folder: Path) -> LocalForge:
    """What a demo does before it generates anything."""
    clone = scratch_clone(Workspace(source), folder)
    return create_local_forge(clone, folder / "forge.git", ALICE.email)


def merge_one(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.approve(1, ALICE)
    forge.merge(1, ALICE)


def test_a_forge_with_merged_work_is_moved_aside_and_said_so(
    source_repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    for number in (1, 2):
        first = start_demo(source_repo, folder)
        merge_one(first)
        before = refs(first)
        second = start_demo(source_repo, folder)
        assert refs(LocalForge(folder / f"forge-{number}.git")) == before
        assert second.list("all") == []
        said = capsys.readouterr().out
        assert "1 merged pull request" in said
        assert str(folder / f"forge-{number}.git") in said
    assert refs(LocalForge(folder / "forge-1.git"))  # the second time left the first one's alone


def test_a_release_is_counted_and_the_tags_that_came_from_the_source_are_not(
    source_repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, folder = tmp_path / "source", tmp_path / "demo"
    subprocess.run(["git", "clone", "--quiet", str(source_repo), str(source)], check=True)
    subprocess.run(["git", "-C", str(source), "tag", "old/v0.1.0"], check=True)
    start_demo(source, folder)
    forge = start_demo(source, folder)
    assert capsys.readouterr().out == ""
    merge_one(forge)
    release(forge, "tiny-cpu", ALICE)
    start_demo(source, folder)
    assert "1 merged pull request and 1 tag" in capsys.readouterr().out
    assert sorted(LocalForge(folder / "forge-1.git").tags("")) == ["old/v0.1.0", "tiny-cpu/v0.1.0"]


def test_a_forge_that_nobody_merged_into_makes_room(
    source_repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = start_demo(source_repo, tmp_path / "demo")
    first.publish(request(first))
    (tmp_path / "demo/work/left-over").touch()
    start_demo(source_repo, tmp_path / "demo")
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["forge.git", "metainfer-demo", "work"]
    assert not (tmp_path / "demo/work/left-over").exists()
    assert capsys.readouterr().out == ""


def test_a_forge_that_cannot_be_read_is_not_taken_for_an_empty_one(source_repo: Path, tmp_path: Path) -> None:
    forge = start_demo(source_repo, tmp_path / "demo")
    (forge.repo.git_dir / "HEAD").unlink()
    start_demo(source_repo, tmp_path / "demo")
    assert (tmp_path / "demo/forge-1.git/objects").is_dir()


def test_a_folder_that_is_no_demos_is_left_alone(source_repo: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(InputError, match="not an earlier demo's"):
        scratch_clone(Workspace(source_repo), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("goals", "rest"),
    [
        ("goals:\n  decode_mbu: 0.4\n", "precision: {weights: bf16}\n"),
        ("goals: {decode_mbu: 0.4}\n", "# why\nprecision: {weights: bf16}\n"),
        ("goals: {decode_mbu: 0.4}", ""),
        ("goals:\n  decode_mbu: 0.4\n\n", ""),
        ("goals:\n  decode_mbu: 0.4", ""),
    ],
)
def test_the_demo_sets_no_goals_and_says_the_rest_as_it_was(
    source_repo: Path, tmp_path: Path, goals: str, rest: str
) -> None:
    """A busy machine must not turn the first thing red that anybody runs."""
    spec = Path("specs/tiny.yaml")
    (source_repo / spec).parent.mkdir(exist_ok=True)
    (source_repo / spec).write_text(f"name: tiny\n# Goals\n{goals}{rest}")
    for arguments in (["add", "--all"], ["commit", "--quiet", "--message", "A goal"]):
        subprocess.run(["git", "-C", str(source_repo), *arguments], check=True)
    clone = scratch_clone(Workspace(source_repo), tmp_path / "demo")
    assert drop_goals(clone, spec)
    assert (clone / spec).read_text() == f"name: tiny\n# Goals\n{rest}"
    forge = create_local_forge(clone, tmp_path / "demo" / "forge.git", ALICE.email)
    assert forge.read_file(forge.base_sha(), str(spec)) == (clone / spec).read_bytes()
    assert not drop_goals(clone, spec)
    assert goals in (source_repo / spec).read_text()
