"""A knowledge base that is a submodule: generation reads it at its pin, and proposals are sent to where it is kept."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from metainfer.errors import InputError, RefusedError
from metainfer.forge.pinned import resolve, submodule_url
from metainfer.forge.setup import create_local_forge
from metainfer.pipeline.knowledge import export_knowledge, pinned_elsewhere
from metainfer.pipeline.proposed import read_proposals
from metainfer.scaffold.submodule import set_pin


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def knowledge(tmp_path: Path) -> Path:
    folder = tmp_path / "knowledge"
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(folder))
    (folder / "general/x").mkdir(parents=True)
    (folder / "general/x/contract.yaml").write_text("id: general/x\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "First")
    git(folder, "tag", "v1")
    return folder


@pytest.fixture
def repo(tmp_path: Path, knowledge: Path) -> Path:
    folder = tmp_path / "repo"
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(folder))
    set_pin(folder, resolve(str(knowledge), "v1"))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "Pin")
    return folder


def test_the_export_holds_what_the_pin_says_and_not_what_came_later(
    repo: Path, knowledge: Path, tmp_path: Path
) -> None:
    (knowledge / "general/x/contract.yaml").write_text("id: general/x\nversion: 2\n")
    git(knowledge, "commit", "--quiet", "-am", "Second")
    forge = create_local_forge(repo, tmp_path / "forge.git", "a@example.org")
    root = export_knowledge(forge, forge.base_sha(), tmp_path / "state")
    assert (root / "general/x/contract.yaml").read_text() == "id: general/x\n"
    assert (pinned_elsewhere(root) or "").startswith(str(knowledge))


def test_proposals_are_sent_to_the_shared_repository(repo: Path, tmp_path: Path) -> None:
    forge = create_local_forge(repo, tmp_path / "forge.git", "a@example.org")
    root = export_knowledge(forge, forge.base_sha(), tmp_path / "state")
    with pytest.raises(RefusedError, match="propose the change there"):
        read_proposals([tmp_path / "delta.json"], root)


def test_a_submodule_that_gitmodules_does_not_name_is_refused(repo: Path, tmp_path: Path) -> None:
    (repo / ".gitmodules").write_text('[submodule "other"]\n\tpath = other\n\turl = /tmp/x\n')
    git(repo, "commit", "--quiet", "-am", "Lose it")
    forge = create_local_forge(repo, tmp_path / "forge.git", "a@example.org")
    with pytest.raises(RefusedError, match=r"\.gitmodules"):
        export_knowledge(forge, forge.base_sha(), tmp_path / "state")


def test_a_url_in_gitmodules_cannot_run_a_program(repo: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (repo / ".gitmodules").write_text(f'[submodule "ckb"]\n\tpath = ckb\n\turl = "ext::touch {mark}"\n')
    git(repo, "commit", "--quiet", "-am", "Attack")
    forge = create_local_forge(repo, tmp_path / "forge.git", "a@example.org")
    with pytest.raises(InputError, match="can be pinned"):
        export_knowledge(forge, forge.base_sha(), tmp_path / "state")
    assert not mark.exists()


def test_the_url_is_that_of_the_last_entry_for_the_path() -> None:
    text = b'[submodule "a.b"]\n\tpath = ckb\n\turl = https://x.org/a.git\n[submodule "c"]\n\tpath = c\n\turl = u\n'
    assert submodule_url(text, "ckb") == "https://x.org/a.git"
    assert submodule_url(text, "d") is None
    assert submodule_url(b"", "ckb") is None
