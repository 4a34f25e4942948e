"""The knowledge base on disk: read whole, and every fault named at once where it stands."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from metainfer.ckb.store import KnowledgeBase, KnowledgeError
from tests.ckb.builders import write_contract

CKB = Path(__file__).parents[2] / "ckb"


def problems(root: Path) -> list[str]:
    with pytest.raises(KnowledgeError) as caught:
        KnowledgeBase.load(root)
    return [problem.replace(f"{root}{os.sep}", "") for problem in caught.value.problems]


def edit(folder: Path, old: str, new: str, file: str = "contract.yaml") -> None:
    path = folder / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_a_base_that_holds_together_loads(tmp_path: Path) -> None:
    write_contract(tmp_path, "general/sequence", "Sequence")
    write_contract(tmp_path, "family/rope", "rope", requires=["general/sequence"])
    assert sorted(KnowledgeBase.load(tmp_path).contracts) == ["family/rope", "general/sequence"]


def test_every_fault_of_every_contract_is_reported_at_once_with_line_and_column(tmp_path: Path) -> None:
    edit(write_contract(tmp_path, "general/a", "A"), "version: 1", "version: one")
    edit(write_contract(tmp_path, "general/b", "B"), "title:", "tilte:")
    edit(write_contract(tmp_path, "family/c", "C"), "applies_when: 'true'\nunits", "applies_when: qk_nrom\nunits")
    write_contract(tmp_path, "family/d", "D", requires=["general/a", "general/sequense"])
    write_contract(tmp_path, "general/sequence", "Sequence")
    found = "\n".join(problems(tmp_path))
    for pattern in (
        r"general/a/contract\.yaml:2:1: version: .*integer",
        r"general/b/contract\.yaml:3:1: tilte: there is no such key; did you mean title\?",
        r"general/b/contract\.yaml:1:1: title: is missing",
        r"family/c/contract\.yaml:4:1: applies_when: column 1: there is no fact named qk_nrom; did you mean qk_norm\?",
        r"family/d/contract\.yaml:\d+:\d+: requires: there is no contract general/sequense; did you mean general/seq",
    ):
        assert re.search(pattern, found), f"{pattern} is not in\n{found}"
    assert "there is no contract general/a" not in found, "a contract that does not load exists all the same"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("id: general/a", "id: general/b", "id is general/b, but the folder is general/a"),
        ("id: general/a", "id: General/a", "is not a contract id"),
        ("exemplars/all.py", "exemplars/none.py", "exemplars/none.py: no such file"),
        ("exemplars/all.py", "../a/exemplars/all.py", "inside the contract's folder"),
        ("exemplars/all.py", ".hidden.py", "no hidden parts"),
        ("units:\n  - A\n", "units:\n  - B\n", "serves B, not among the units"),
        ("'2026-12-01'", "yesterday", "write YYYY-MM-DD"),
        ("version: 1", "version: 1\nversion: 2", "twice"),
        ("version: 1", "version: 0", "greater than or equal to 1"),
        ("title: A contract for tests", "title: ''", "at least 1 character"),
        ("semantics:", "requires: [general/a]\nsemantics:", "requires or conflicts with itself"),
        ("semantics:", "requires: [family/b]\nsemantics:", "in a higher layer"),
    ],
)
def test_a_faulty_contract_is_refused_by_its_fault(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    folder = write_contract(tmp_path, "general/a", "A")
    edit(folder, old, new)
    assert any(complaint in problem for problem in problems(tmp_path)), problems(tmp_path)


def test_contracts_that_require_each_other_in_a_circle_are_named(tmp_path: Path) -> None:
    write_contract(tmp_path, "general/a", "A", requires=["general/b"])
    write_contract(tmp_path, "general/b", "B", requires=["general/c"])
    write_contract(tmp_path, "general/c", "C", requires=["general/a"])
    write_contract(tmp_path, "general/d", "D")
    found = problems(tmp_path)
    assert len(found) == 3
    assert any("general/a/contract.yaml: requires itself, through general/b" in problem for problem in found)


def test_units_without_a_check_and_checks_without_a_check_function_prove_nothing(tmp_path: Path) -> None:
    (write_contract(tmp_path, "general/a", "A") / "check.py").unlink()
    write_contract(tmp_path, "general/b", "B", check="def helper():\n    pass\n")
    found = problems(tmp_path)
    assert any("has units but no check.py" in problem for problem in found)
    assert any("general/b/check.py: defines no check_* function" in problem for problem in found)


def test_a_failure_mode_names_a_check_that_exists_or_a_gate(tmp_path: Path) -> None:
    mode = {"id": "m", "symptom": "s", "trigger": "t", "fix": "f", "source": "x"}
    write_contract(
        tmp_path,
        "general/a",
        "A",
        failure_modes=[mode | {"caught_by": "check_somthing"}, mode | {"id": "n", "caught_by": "numerics"}],
    )
    (found,) = problems(tmp_path)
    assert "m: check.py has no check_somthing; did you mean check_something?" in found


@pytest.mark.parametrize(
    ("mutants", "complaint"),
    [
        ("- {name: m, file: exemplars/all.py, replace: nowhere, with: x, why: y}", ":1:3: m: its text occurs 0 times"),
        ("- {name: m, file: exemplars/all.py, replace: n, with: x, why: y}", "m: its text occurs"),
        ("- {name: m, file: exemplars/no.py, replace: n, with: x, why: y}", "m: its text occurs 0 times"),
        ("- {name: m, file: exemplars/all.py, replace: None, with: x}", "why: is missing"),
        ("mutants: []", "list"),
    ],
)
def test_a_mutant_that_does_not_fit_its_exemplar_is_refused(tmp_path: Path, mutants: str, complaint: str) -> None:
    (write_contract(tmp_path, "general/a", "A") / "mutants.yaml").write_text(mutants)
    assert any(complaint in problem for problem in problems(tmp_path)), problems(tmp_path)


def test_what_is_no_contract_has_no_place_in_the_base(tmp_path: Path) -> None:
    write_contract(tmp_path, "general/a", "A")
    (tmp_path / "misc").mkdir()
    (tmp_path / "general" / "empty").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("About the base.\n")
    found = problems(tmp_path)
    assert len(found) == 2
    assert "misc: not a layer; layers are general, family, model, platform, deployment" in found[1]
    assert "general/empty: has no contract.yaml" in found[0]


def test_links_are_refused(tmp_path: Path) -> None:
    folder = write_contract(tmp_path, "general/a", "A")
    (folder / "exemplars" / "all.py").rename(tmp_path / "elsewhere.py")
    (folder / "exemplars" / "all.py").symlink_to(tmp_path / "elsewhere.py")
    assert any("all.py: a link" in problem for problem in problems(tmp_path))


def test_a_base_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert "no such folder" in problems(tmp_path / "nothing")[0]


@pytest.mark.parametrize("file", ["contract.yaml", "check.py", "mutants.yaml", "exemplars/all.py"])
def test_the_digest_covers_text_check_mutants_and_exemplars(tmp_path: Path, file: str) -> None:
    folder = write_contract(tmp_path, "general/a", "A")
    (folder / "mutants.yaml").write_text("[]\n")
    before = KnowledgeBase.load(tmp_path).contracts["general/a"].digest
    with (folder / file).open("a") as stream:
        stream.write("# a remark\n")
    assert KnowledgeBase.load(tmp_path).contracts["general/a"].digest != before


def test_the_digest_covers_nothing_that_a_tool_leaves_behind_or_a_move(tmp_path: Path) -> None:
    folder = write_contract(tmp_path / "one", "general/a", "A")
    before = KnowledgeBase.load(tmp_path / "one").contracts["general/a"].digest
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "check.cpython-311.pyc").write_bytes(b"x")
    (folder / ".check.py.swp").write_bytes(b"x")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert KnowledgeBase.load(tmp_path / "two").contracts["general/a"].digest == before


def test_the_base_of_this_repository_loads() -> None:
    assert KnowledgeBase.load(CKB).contracts
