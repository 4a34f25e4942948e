"""What a head changes in the knowledge base, and what no approval can make right."""

from __future__ import annotations

import pytest

from metainfer.ckb.kinds import Kind
from metainfer.review.knowledge import is_knowledge, read_knowledge_change
from tests.review.repository import CHECK, FILE_MODE, Heads

CHECK_PATH = "ckb/family/a/check.py"


def kinds(heads: Heads, head: str) -> set[Kind]:
    return {finding.kind for finding in read_knowledge_change(heads.repo, heads.base, head).findings}


def test_a_head_without_knowledge_changes_nothing(heads: Heads) -> None:
    change = read_knowledge_change(heads.repo, heads.base, heads.head({"engines/a/x.py": b"1\n", "README.md": b"y"}))
    assert (change.paths, change.findings, change.problems) == ((), (), ())


def test_changed_new_and_removed_files_are_all_listed(heads: Heads) -> None:
    files = {CHECK_PATH: None, "ckb/family/b/contract.yaml": b"id: x\n", "ckb/family/a/exemplars/all.py": b"p, q\n"}
    change = read_knowledge_change(heads.repo, heads.base, heads.head(files))
    assert set(change.paths) == set(files)


def test_a_raised_tolerance_is_found_and_so_is_the_version_that_was_not(heads: Heads) -> None:
    head = heads.head({CHECK_PATH: CHECK.replace("1e-5", "1e-3").encode()})
    assert kinds(heads, head) == {Kind.TOLERANCE_RAISED, Kind.VERSION_NOT_RAISED}


def test_a_renamed_file_is_a_removal_and_a_new_file(heads: Heads) -> None:
    head = heads.head({CHECK_PATH: None, "ckb/family/a/checks.py": CHECK.encode()})
    change = read_knowledge_change(heads.repo, heads.base, head)
    assert set(change.paths) == {CHECK_PATH, "ckb/family/a/checks.py"}
    assert Kind.CHECK_REMOVED in kinds(heads, head)


def test_what_came_to_the_base_since_is_not_the_heads(heads: Heads) -> None:
    head = heads.head({"README.md": b"y"})
    heads.base = heads.commit(heads.base, {CHECK_PATH: CHECK.replace("1e-5", "1e-3").encode()})
    assert read_knowledge_change(heads.repo, heads.base, head).paths == ()


@pytest.mark.parametrize(("mode", "words"), [("120000", "a symbolic link"), ("160000", "a submodule")])
def test_a_link_or_submodule_below_ckb_is_a_problem_and_a_change(mode: str, words: str, heads: Heads) -> None:
    sha = heads.base if mode == "160000" else heads.repo.write_blob(b"../../../etc")
    change = read_knowledge_change(heads.repo, heads.base, heads.head({}, {CHECK_PATH: (mode, sha)}))
    assert CHECK_PATH in change.paths
    assert words in change.problems[0]


def test_ckb_as_a_link_elsewhere_is_a_problem(heads: Heads) -> None:
    removed = dict.fromkeys(path for path in heads.repo.tree(heads.base) if path.startswith("ckb/"))
    head = heads.head(removed, {"ckb": ("120000", heads.repo.write_blob(b"evil"))})
    change = read_knowledge_change(heads.repo, heads.base, head)
    assert "ckb" in change.paths
    assert any("kept in a folder" in problem for problem in change.problems)
    assert Kind.CONTRACT_REMOVED in {finding.kind for finding in change.findings}


def test_a_mode_alone_is_a_change(heads: Heads) -> None:
    sha = heads.repo.tree(heads.base)[CHECK_PATH].sha
    change = read_knowledge_change(heads.repo, heads.base, heads.head({}, {CHECK_PATH: ("100755", sha)}))
    assert change.paths == (CHECK_PATH,)


@pytest.mark.parametrize("path", ["CKB/family/a/check.py", "Ckb/x", "ｃkb/x", "ckb./x", "ckb /x", "ckb"])
def test_what_a_file_system_takes_for_ckb_is_knowledge(path: str) -> None:
    assert is_knowledge(path)


@pytest.mark.parametrize("path", ["ckbs/x", "docs/ckb/x", "ckb.md", "xckb/y"])
def test_other_folders_are_not(path: str) -> None:
    assert not is_knowledge(path)


def test_another_spelling_of_ckb_is_a_problem(heads: Heads) -> None:
    change = read_knowledge_change(heads.repo, heads.base, heads.head({"CKB/family/a/check.py": b"x = 1\n"}))
    assert change.paths == ("CKB/family/a/check.py",)
    assert "another folder" in change.problems[0]


def test_a_file_that_differs_from_another_in_case_alone_is_a_problem(heads: Heads) -> None:
    change = read_knowledge_change(heads.repo, heads.base, heads.head({"ckb/family/a/Check.py": b"x = 1\n"}))
    assert any("differs only in case" in problem for problem in change.problems)


def test_a_moved_pin_of_a_shared_base_is_loud_and_its_url_is_knowledge_too(heads: Heads) -> None:
    removed = dict.fromkeys(path for path in heads.repo.tree(heads.base) if path.startswith("ckb/"))
    heads.base = heads.head(removed | {".gitmodules": b"one\n"}, {"ckb": ("160000", "1" * 40)})
    blob = heads.repo.write_blob(b"two\n")
    head = heads.head({}, {"ckb": ("160000", "2" * 40), ".gitmodules": (FILE_MODE, blob)})
    change = read_knowledge_change(heads.repo, heads.base, head)
    assert change.paths == ("ckb", ".gitmodules")
    assert change.findings[0].is_loud
    assert "111111111111 to 222222222222" in change.findings[0].words


def test_heads_with_nothing_in_common_are_a_problem(heads: Heads) -> None:
    orphan = heads.commit(None, {"ckb/x": b"y"})
    change = read_knowledge_change(heads.repo, heads.base, orphan)
    assert change.problems


# What a merge would bring, though the head looks as the commit did where it left its base.

TIGHT = {CHECK_PATH: CHECK.replace("1e-5", "1e-6").encode()}
LOOSE = {CHECK_PATH: CHECK.encode()}


def test_a_crossed_history_does_not_hide_that_a_merge_takes_knowledge_back(heads: Heads) -> None:
    """Two best common ancestors: seen from one of them alone, the head changes nothing."""
    before, tightened = heads.base, heads.head(TIGHT)
    other = heads.commit(before, {"README.md": b"y"})
    heads.base = heads.merge([other, tightened], TIGHT)
    for parents in ([other, tightened], [tightened, other]):
        head = heads.merge(parents, LOOSE)
        assert heads.merged(head)[CHECK_PATH] == CHECK.encode(), "the merge takes it back"
        assert read_knowledge_change(heads.repo, heads.base, head).paths == (CHECK_PATH,)


def test_a_file_that_the_base_moved_into_ckb_is_knowledge(heads: Heads) -> None:
    """A merge follows the move, and carries a change of the old place there."""
    text = b"".join(b"LIMIT_%d = %d\n" % (n, n) for n in range(40))
    start = heads.base = heads.head({"rules/limits.py": text})
    heads.base = heads.head({"rules/limits.py": None, "ckb/family/a/limits.py": text})
    head = heads.commit(start, {"rules/limits.py": text.replace(b"= 7\n", b"= 700\n")})
    assert b"= 700" in heads.merged(head)["ckb/family/a/limits.py"]
    assert "ckb/family/a/limits.py" in read_knowledge_change(heads.repo, heads.base, head).paths


def test_a_commit_on_the_way_that_takes_knowledge_back_is_a_change(heads: Heads) -> None:
    """Merged by rebase, each commit is applied: one that the base has already does nothing, its undoing does."""
    head = heads.commit(heads.commit(heads.base, TIGHT), LOOSE)
    heads.base = heads.commit(heads.base, {**TIGHT, "README.md": b"y"})
    assert read_knowledge_change(heads.repo, heads.base, head).paths == (CHECK_PATH,)


def test_a_head_that_took_the_base_in_does_not_answer_for_what_came_with_it(heads: Heads) -> None:
    mine = heads.head({"README.md": b"y"})
    heads.base = heads.head(TIGHT)
    merged = heads.merge([mine, heads.base], {"README.md": b"y", **TIGHT})
    assert read_knowledge_change(heads.repo, heads.base, merged).paths == ()
    heads.base = heads.commit(heads.base, {"other": b"1"})
    assert read_knowledge_change(heads.repo, heads.base, heads.commit(merged, {"x": b"2"})).paths == ()
