"""What a merge demands, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from metainfer.errors import ConflictError
from metainfer.forge.local import LocalForge
from metainfer.forge.markers import branch_of
from metainfer.forge.plumbing import RefUpdate
from metainfer.forge.protocol import MergeRefusedError, Status
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


def test_an_approved_head_becomes_the_bases_engine(forge: LocalForge) -> None:
    base = forge.base_sha()
    forge.publish(request(forge))
    forge.approve(1, BOB)
    assert list(forge.merge_blockers(1)) == []
    outcome = forge.merge(1, ALICE)
    assert forge.base_sha() == outcome.commit
    assert forge.repo.read("log", "-1", "--format=%P", "main").decode().split() == [base, forge.get(1).head]
    assert forge.repo.object_at("main", FOLDER) == forge.repo.object_at(forge.get(1).head, FOLDER)
    assert (forge.get(1).state, forge.get(1).merge_commit) == ("merged", outcome.commit)
    assert forge.repo.commit_at(BRANCH) is None
    assert b"Reviewed-by: Bob Example <bob@example.org>" in forge.repo.read("log", "-1", "--format=%B", "main")


def test_merging_twice_is_merging_once(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.approve(1, ALICE)
    first = forge.merge(1, ALICE)
    assert forge.merge(1, ALICE) == first


def test_nobody_merges_what_nobody_approved(forge: LocalForge) -> None:
    forge.publish(request(forge))
    assert "nobody has approved head" in refusal(forge)


def test_an_approval_does_not_carry_over_to_a_new_head(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.approve(1, ALICE)
    forge.publish(request(forge, "sha256:bb"))
    assert "the reviewed head is not the one to be merged" in refusal(forge)


def test_a_head_that_is_not_the_expected_one_is_neither_approved_nor_merged(forge: LocalForge) -> None:
    old = forge.publish(request(forge)).head
    forge.publish(request(forge, "sha256:bb"))
    with pytest.raises(ConflictError, match="has moved on"):
        forge.approve(1, ALICE, head=old)
    forge.approve(1, ALICE)
    with pytest.raises(ConflictError, match="has moved on"):
        forge.merge(1, ALICE, expected_head=old)


@pytest.mark.parametrize(
    ("verdict", "said"),
    [("failed", "gate numerics: failed"), ("error", "gate numerics: error"), ("absent", "gate numerics has no report")],
)
def test_a_gate_that_is_red_or_missing_stops_the_merge(forge: LocalForge, verdict: str, said: str) -> None:
    forge.publish(request(forge, verdicts={"numerics": verdict}))
    forge.approve(1, ALICE)
    assert said in refusal(forge)


def test_an_extra_gate_must_be_green_too(forge: LocalForge) -> None:
    forge.publish(request(forge, verdicts={"performance": "failed"}))
    forge.approve(1, ALICE)
    assert "gate performance: failed" in refusal(forge)


def test_a_persons_commit_on_the_branch_stops_the_merge(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.approve(1, ALICE)
    commit_on(forge, branch_of(ENGINE), {f"{FOLDER}README.md": b"# by hand\n"})
    assert "not at the proposed head" in refusal(forge)


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


def test_knowledge_needs_an_owner_of_the_knowledge_base(forge: LocalForge) -> None:
    forge.publish(request(forge, proposals=KNOWLEDGE))
    forge.approve(1, BOB)
    assert "a change of knowledge needs the approval of alice@example.org" in refusal(forge)
    forge.approve(1, ALICE)
    forge.merge(1, BOB)
    assert forge.read_file("main", next(iter(KNOWLEDGE))) == next(iter(KNOWLEDGE.values()))


def test_an_owners_approval_of_an_older_head_is_none(forge: LocalForge) -> None:
    forge.publish(request(forge, proposals=KNOWLEDGE))
    forge.approve(1, ALICE)
    forge.publish(request(forge, "sha256:bb", proposals=KNOWLEDGE))
    forge.approve(1, BOB)
    assert "needs the approval of alice@example.org" in refusal(forge)


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


def test_a_base_that_moved_elsewhere_is_merged_with(forge: LocalForge) -> None:
    forge.publish(request(forge, proposals=KNOWLEDGE))
    commit_on(forge, "main", {"docs/new.md": b"new\n", "ckb/general/x.yaml": b"x: 1\n"})
    forge.approve(1, ALICE)
    forge.merge(1, ALICE)
    for path in ("docs/new.md", "ckb/general/x.yaml", next(iter(KNOWLEDGE)), f"{FOLDER}README.md"):
        assert forge.read_file("main", path) is not None


@pytest.mark.parametrize("path", [f"{FOLDER}README.md", next(iter(KNOWLEDGE))])
def test_a_base_that_moved_in_the_same_place_stops_the_merge(forge: LocalForge, path: str) -> None:
    forge.publish(request(forge, proposals=KNOWLEDGE))
    commit_on(forge, "main", {path: b"somebody was faster\n"})
    forge.approve(1, ALICE)
    assert "changed on the base since this was" in refusal(forge)


def test_two_engines_merge_one_after_the_other(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.publish(request(forge, engine="other-cpu"))
    for number in (1, 2):
        forge.approve(number, ALICE)
        forge.merge(number, ALICE)
    assert forge.read_tree("main", "engines/other-cpu")
    assert forge.read_tree("main", FOLDER)


@pytest.mark.parametrize("act", [lambda f: f.close(1, BOB), lambda f: (f.approve(1, BOB), f.merge(1, BOB))])
def test_what_is_closed_or_merged_is_not_approved_any_more(
    forge: LocalForge, act: Callable[[LocalForge], object]
) -> None:
    forge.publish(request(forge))
    act(forge)
    with pytest.raises(ConflictError):
        forge.approve(1, ALICE)


def test_a_merge_with_git_alone_is_noticed(forge: LocalForge) -> None:
    forge.publish(request(forge))
    head = forge.get(1).head
    merge = forge.repo.write_commit(f"{head}^{{tree}}", ["main", head], "Merge by hand\n", ALICE)
    forge.repo.move_refs([RefUpdate("refs/heads/main", merge, forge.base_sha())], "push")
    assert forge.get(1).state == "merged"
    assert forge.find_open(ENGINE) is None
    assert forge.publish(request(forge, "sha256:bb")).status is Status.CREATED
    assert [pull.state for pull in forge.list("all")] == ["merged", "open"]
