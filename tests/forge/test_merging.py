"""What the local forge alone promises about a merge; the rest is the contract of all forges."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.forge.local import LocalForge
from metainfer.forge.markers import branch_of
from metainfer.forge.plumbing import RefUpdate
from metainfer.forge.protocol import MergeRefusedError
from metainfer.forge.setup import create_local_forge
from tests.forge.engines import ALICE, BOB, ENGINE, FOLDER, KNOWLEDGE, commit_on, refs, request

BRANCH = f"refs/heads/{branch_of(ENGINE)}"


def refusal(forge: LocalForge, number: int = 1) -> str:
    before = refs(forge)
    with pytest.raises(MergeRefusedError) as caught:
        forge.merge(number, ALICE)
    assert refs(forge) == before
    assert list(forge.merge_blockers(number)) == list(caught.value.reasons)
    return str(caught.value)


def test_a_merge_names_the_reviewers_and_removes_the_branch(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.approve(1, BOB)
    forge.merge(1, ALICE)
    assert forge.repo.commit_at(BRANCH) is None
    assert b"Reviewed-by: Bob Example <bob@example.org>" in forge.repo.read("log", "-1", "--format=%B", "main")


def test_an_extra_gate_must_be_green_too(forge: LocalForge) -> None:
    forge.publish(request(forge, verdicts={"performance": "failed"}))
    forge.approve(1, ALICE)
    assert "gate performance: failed" in refusal(forge)


def _edit(forge: LocalForge, files: dict[str, bytes]) -> None:
    """Make the record propose a head that a person wrote, as a forge without our publish would allow."""
    recorded = forge.store.get(1)
    assert recorded
    head = commit_on(forge, branch_of(ENGINE), files)
    pull = recorded.pull.model_copy(update={"head": head})
    assert forge.repo.move_refs([forge.store.change(pull, recorded.sha, "edited", ALICE)], "edit")
    forge.approve(1, ALICE)


def test_a_file_edited_after_generation_stops_the_merge(forge: LocalForge) -> None:
    forge.publish(request(forge))
    _edit(forge, {f"{FOLDER}tiny_cpu/model.py": b"print('by hand')\n"})
    assert "tiny_cpu/model.py was changed after it was generated" in refusal(forge)


def test_a_change_outside_the_allowed_folders_stops_the_merge(forge: LocalForge) -> None:
    forge.publish(request(forge))
    _edit(forge, {".github/workflows/x.yml": b"on: push\n", "README.md": b"x"})
    text = refusal(forge)
    assert ".github/workflows/x.yml: outside" in text
    assert "README.md: outside" in text


@pytest.mark.parametrize(
    ("mode", "said"), [("120000", "symbolic link"), ("160000", "submodule"), ("100755", "executable")]
)
def test_only_plain_files_are_merged(forge: LocalForge, mode: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forge.publish(request(forge))
    monkeypatch.setattr("metainfer.forge.plumbing.FILE_MODE", mode)
    sha = forge.base_sha() if mode == "160000" else forge.repo.write_blob(b"/etc/passwd")
    tip = forge.repo.commit_at(BRANCH)
    assert tip
    head = forge.repo.write_commit(forge.repo.write_tree(tip, {f"{FOLDER}link": sha}), [tip], "x\n", ALICE)
    monkeypatch.undo()
    recorded = forge.store.get(1)
    assert recorded
    moves = [
        RefUpdate(BRANCH, head, tip),
        forge.store.change(recorded.pull.model_copy(update={"head": head}), recorded.sha, "edited", ALICE),
    ]
    assert forge.repo.move_refs(moves, "edit")
    forge.approve(1, ALICE)
    assert said in refusal(forge)


def test_a_head_cannot_appoint_its_own_reviewers(forge: LocalForge) -> None:
    forge.publish(request(forge, proposals=KNOWLEDGE))
    commit_on(forge, branch_of(ENGINE), {".github/CODEOWNERS": b"* bob@example.org\n"})
    recorded = forge.store.get(1)
    tip = forge.repo.commit_at(BRANCH)
    assert recorded
    assert tip
    pull = recorded.pull.model_copy(update={"head": tip})
    assert forge.repo.move_refs([forge.store.change(pull, recorded.sha, "edited", BOB)], "edit")
    forge.approve(1, BOB)
    assert "needs the approval of alice@example.org" in refusal(forge)


def test_knowledge_that_nobody_owns_cannot_be_approved_by_anybody(source_repo: Path, tmp_path: Path) -> None:
    forge = create_local_forge(source_repo, tmp_path / "unowned.git")
    forge.publish(request(forge, proposals=KNOWLEDGE))
    forge.approve(1, ALICE)
    assert "names none" in refusal(forge)


def test_an_engine_alone_needs_no_code_owner(source_repo: Path, tmp_path: Path) -> None:
    forge = create_local_forge(source_repo, tmp_path / "unowned.git")
    forge.publish(request(forge))
    forge.approve(1, BOB)
    forge.merge(1, BOB)


def test_a_history_that_crossed_the_bases_is_not_merged(forge: LocalForge) -> None:
    """A merge takes back what one common ancestor brought; the difference from the other one is nil."""
    main, start = "refs/heads/main", forge.base_sha()
    tightened = commit_on(forge, "main", {"ckb/x.py": b"1e-6\n"})
    other = forge.repo.write_commit(
        forge.repo.write_tree(start, {"README.md": forge.repo.write_blob(b"y")}), [start], "x\n", ALICE
    )
    tree = forge.repo.write_tree(tightened, {"README.md": forge.repo.write_blob(b"y")})
    merged = forge.repo.write_commit(tree, [other, tightened], "Merge\n", ALICE)
    assert forge.repo.move_refs([RefUpdate(main, merged, tightened)], "merge")
    forge.publish(request(forge))
    tip = forge.repo.commit_at(BRANCH)
    recorded = forge.store.get(1)
    assert tip
    assert recorded
    engine = {path: entry.sha for path, entry in forge.repo.tree(tip, FOLDER).items()}
    tree = forge.repo.write_tree(other, engine)
    head = forge.repo.write_commit(tree, [other, tightened], "x\n", ALICE)
    pull = recorded.pull.model_copy(update={"head": head})
    moves = [RefUpdate(BRANCH, head, tip), forge.store.change(pull, recorded.sha, "edited", ALICE)]
    assert forge.repo.move_refs(moves, "edit")
    forge.approve(1, ALICE)
    assert "its history crossed that of main" in refusal(forge)
