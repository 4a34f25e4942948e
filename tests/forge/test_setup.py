"""Making a forge, finding it, knowing who acts, and the dry run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metainfer.cli import app
from metainfer.errors import InputError
from metainfer.forge import Forge, Status, create_local_forge, open_forge
from metainfer.forge.dryrun import DryRun
from metainfer.forge.github.credentials import SECRET_VARIABLES
from metainfer.forge.identity import identify
from metainfer.forge.local import LocalForge
from metainfer.forge.protocol import MergeRefusedError, NoForgeError, NoSuchPullError, PublishRefusedError
from tests.forge.engines import ALICE, BOB, ENGINE, FOLDER, KNOWLEDGE, commit_on, refs, request


@pytest.fixture
def workspace(source_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("METAINFER_FORGE", raising=False)
    folder = tmp_path / "work"
    subprocess.run(["git", "clone", "--quiet", str(source_repo), str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "config", "user.name", "Work Er"], check=True)
    subprocess.run(["git", "-C", str(folder), "config", "user.email", "worker@example.org"], check=True)
    return folder


def test_without_a_forge_the_error_says_how_to_make_one(workspace: Path) -> None:
    with pytest.raises(NoForgeError, match="metainfer forge init DIR"):
        open_forge(workspace)


def test_a_new_forge_is_found_by_the_repository_it_was_made_from(workspace: Path, tmp_path: Path) -> None:
    made = create_local_forge(workspace, tmp_path / "forge.git", "owner@example.org")
    found = open_forge(workspace)
    assert isinstance(found, Forge)
    assert found.base_sha() == made.base_sha()
    assert b"owner@example.org" in (found.read_file("main", ".github/CODEOWNERS") or b"")


def test_a_second_forge_names_the_one_that_it_replaces(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    first = CliRunner().invoke(app, ["forge", "init", str(tmp_path / "one.git")])
    assert first.exit_code == 0, first.output
    assert "until now" not in first.output
    second = CliRunner().invoke(app, ["forge", "init", str(tmp_path / "two.git")])
    assert f"until now it was {tmp_path / 'one.git'}" in second.output
    assert open_forge(workspace).address() == str(tmp_path / "two.git")


def test_a_forge_without_an_owner_is_the_source_commit_for_commit(workspace: Path, tmp_path: Path) -> None:
    made = create_local_forge(workspace, tmp_path / "forge.git")
    head = subprocess.run(
        ["git", "-C", str(workspace), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert made.base_sha() == head.stdout.strip()


def test_a_forge_can_start_without_an_engine_that_the_source_has(workspace: Path, tmp_path: Path) -> None:
    (workspace / FOLDER).mkdir(parents=True)
    (workspace / FOLDER / "README.md").write_text("x\n")
    subprocess.run(["git", "-C", str(workspace), "add", "."], check=True)
    subprocess.run(["git", "-C", str(workspace), "commit", "--quiet", "-m", "Engine"], check=True)
    made = create_local_forge(workspace, tmp_path / "forge.git", without_engines=[ENGINE])
    assert made.read_tree("main", FOLDER) == {}
    assert made.read_file("main", "README.md") is not None


def test_the_option_beats_the_environment_which_beats_the_configuration(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forges = [create_local_forge(workspace, tmp_path / f"{n}.git") for n in range(3)]
    tips = [commit_on(forge, "main", {"n.txt": str(n).encode()}) for n, forge in enumerate(forges)]
    assert open_forge(workspace).base_sha() == tips[2]  # the last one made
    monkeypatch.setenv("METAINFER_FORGE", str(tmp_path / "1.git"))
    assert open_forge(workspace).base_sha() == tips[1]
    assert open_forge(workspace, "../0.git").base_sha() == tips[0]


def test_a_forge_that_is_gone_or_cannot_be_reached_is_named(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoForgeError, match="--forge"):
        open_forge(workspace, str(tmp_path / "nothing"))
    with pytest.raises(NoForgeError, match="not a bare Git repository"):
        open_forge(workspace, str(workspace))
    for name in SECRET_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="METAINFER_GITHUB_TOKEN"):
        open_forge(workspace, "github:octo/repo")
    with pytest.raises(InputError, match="github:OWNER/NAME"):
        open_forge(workspace, "github:octo")


def test_a_forge_never_overwrites_a_folder(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(InputError, match="not empty"):
        create_local_forge(workspace, tmp_path / "full")
    with pytest.raises(InputError, match="not a Git repository"):
        create_local_forge(tmp_path / "full", tmp_path / "new")
    with pytest.raises(InputError, match="owner"):
        create_local_forge(workspace, tmp_path / "new", "not an owner\n* evil@example.org")
    assert not (tmp_path / "new").exists()


def test_a_hooks_environment_does_not_leak_in(forge: LocalForge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", "/nowhere/objects")
    assert forge.publish(request(forge)).status is Status.CREATED


def test_who_acts_comes_from_git_or_the_command_line(workspace: Path) -> None:
    assert identify(workspace).label == "worker@example.org"
    assert identify(workspace, "bob@example.org").label == "bob@example.org"
    assert identify(workspace, "Bob <bob@example.org>").name == "Bob"
    assert identify(workspace, "@octo/knowledge").label == "@octo/knowledge"
    for wrong in ("bob", "", "Bob <bob>", "a@b\nc@d", "@a>b"):
        with pytest.raises(InputError):
            identify(workspace, wrong)


def test_a_missing_pull_request_is_an_error_that_helps(forge: LocalForge) -> None:
    for number in (0, 1, 99):
        with pytest.raises(NoSuchPullError, match="metainfer pr list"):
            forge.get(number)


def test_a_dry_run_says_what_it_would_do_and_does_nothing(forge: LocalForge) -> None:
    said: list[str] = []
    dry: Forge = DryRun(forge, said.append)
    before = refs(forge)
    assert dry.publish(request(forge, proposals=KNOWLEDGE)).status is Status.CREATED
    assert said[0] == "would open a pull request on branch metainfer/tiny-cpu: Generate tiny-cpu"
    assert any(f"add {FOLDER}README.md" in line for line in said)
    assert any("change ckb/family/rmsnorm/contract.yaml" in line for line in said)
    assert refs(forge) == before
    with pytest.raises(PublishRefusedError):
        dry.publish(request(forge, proposals={"README.md": b"x"}))


def test_a_dry_run_of_a_review_changes_nothing(forge: LocalForge) -> None:
    forge.publish(request(forge))
    said: list[str] = []
    dry = DryRun(forge, said.append)
    before = refs(forge)
    assert dry.publish(request(forge)).status is Status.UNCHANGED
    assert dry.publish(request(forge, regenerate=True)).status is Status.UPDATED
    dry.comment(1, BOB, "hm")
    dry.approve(1, BOB)
    dry.close(1, BOB)
    with pytest.raises(MergeRefusedError):
        dry.merge(1, BOB)
    forge.approve(1, ALICE)
    after = refs(forge)
    dry.merge(1, BOB)
    assert dry.create_tag("tiny-cpu/v0.1.0", forge.base_sha(), "x", BOB)
    assert refs(forge) == after
    assert before.keys() == after.keys()
    assert all(line.startswith(("would", "  ")) for line in said)
