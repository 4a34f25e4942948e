"""The audit names what does not hold together, with facts for which it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metainfer.ckb.audit import Problem, audit, check_functions
from metainfer.ckb.store import KnowledgeBase
from metainfer.generate.blueprint import NEEDED_UNITS

CKB = Path(__file__).parents[2] / "ckb"


def audited(root: Path) -> list[Problem]:
    return audit(KnowledgeBase.load(root))


def edit(root: Path, path: str, old: str, new: str) -> None:
    text = (root / path).read_text()
    assert text.count(old) == 1
    (root / path).write_text(text.replace(old, new))


def test_the_knowledge_base_has_no_problems() -> None:
    assert [str(problem) for problem in audit(KnowledgeBase.load(CKB), NEEDED_UNITS)] == []


def test_a_sound_base_has_no_problems(base: Path) -> None:
    assert audited(base) == []


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        (
            "general/counter/contract.yaml",
            'applies_when: "true"',
            "applies_when: 'qk_norm and not qk_norm'",
            "general/counter: applies_when never holds: qk_norm and not qk_norm",
        ),
        (
            "general/counter/contract.yaml",
            "{path: exemplars/plain.py, units: [count]}",
            "{path: exemplars/plain.py, units: [count], applies_when: 'weight_dtype == \"fp32\"'}",
            "general/counter: count has no exemplar where weight_dtype is bf16",
        ),
        (
            "general/counter/contract.yaml",
            'applies_when: "true"',
            "applies_when: 'architecture == \"qwen2\"'",
            "family/summary: requires general/counter, which does not apply where architecture is qwen3",
        ),
        (
            "family/summary/contract.yaml",
            "requires: [general/counter]",
            "conflicts: [general/counter]",
            "family/summary: conflicts with general/counter, yet both apply where architecture is qwen3",
        ),
        (
            "general/counter/contract.yaml",
            "title: Counts tokens",
            "title: Counts tokens\ndeprecated: Ask len.",
            "family/summary: requires general/counter, which is deprecated: Ask len.",
        ),
        (
            "general/counter/mutants.yaml",
            '- {name: distinct, file: exemplars/plain.py, replace: "len(tokens)", with: "len({*tokens, 0})", '
            "why: Counts kinds.}\n",
            "",
            "general/counter: has 2 mutants; at least 3 are needed",
        ),
    ],
)
def test_a_problem_is_named_with_facts_for_which_it_occurs(
    base: Path, path: str, old: str, new: str, expected: str
) -> None:
    edit(base, path, old, new)
    assert expected in [str(problem).rpartition(" [")[0] for problem in audited(base)]


def test_two_exemplars_for_one_unit_at_once_are_an_overlap(base: Path) -> None:
    (base / "general/counter/exemplars/other.py").write_text("def count(tokens):\n    return sum(1 for _ in tokens)\n")
    edit(
        base,
        "general/counter/contract.yaml",
        "  - {path: exemplars/plain.py, units: [count]}\n",
        "  - {path: exemplars/plain.py, units: [count], applies_when: 'not stop or not seed'}\n"
        "  - {path: exemplars/other.py, units: [count], applies_when: seed}\n",
    )
    assert [problem.message for problem in audited(base)] == [
        "count is served by exemplars/plain.py and exemplars/other.py where seed is true, stop is false"
    ]


def test_two_contracts_for_one_unit_are_an_overlap_only_where_both_apply(base: Path) -> None:
    folder = base / "general/tally"
    folder.mkdir()
    for path in ("contract.yaml", "check.py", "mutants.yaml", "exemplars/plain.py"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text((base / "general/counter" / path).read_text())
    edit(base, "general/tally/contract.yaml", "id: general/counter", "id: general/tally")
    edit(base, "general/tally/contract.yaml", 'applies_when: "true"', "applies_when: tied_embeddings")
    assert [str(problem) for problem in audited(base)] == [
        "general/counter: general/tally describes count too where tied_embeddings is true [overlap]"
    ]
    edit(base, "general/counter/contract.yaml", 'applies_when: "true"', "applies_when: not tied_embeddings")
    edit(base, "family/summary/contract.yaml", "requires: [general/counter]", "requires: []")
    assert audited(base) == []


def test_a_file_that_nothing_names_is_a_problem(base: Path) -> None:
    (base / "general/counter/exemplars/forgotten.py").write_text("")
    (base / "general/counter/__pycache__").mkdir()
    (base / "general/counter/__pycache__/check.pyc").write_bytes(b"")
    assert [str(problem) for problem in audited(base)] == [
        "general/counter: exemplars/forgotten.py: neither the contract nor an exemplar names it [unused-file]"
    ]


def test_a_unit_that_no_contract_describes_is_missing(base: Path) -> None:
    problems = audit(KnowledgeBase.load(base), ["count", "Scheduler"])
    assert [problem.message for problem in problems] == [
        "engines need Scheduler, and no accepted contract describes it"
    ]


def test_a_deprecated_contract_is_not_audited_itself(base: Path) -> None:
    edit(base, "general/counter/contract.yaml", "title: Counts tokens", "title: Counts tokens\ndeprecated: Ask len.")
    (base / "general/counter/mutants.yaml").unlink()
    assert not [problem for problem in audited(base) if problem.contract == "general/counter"]


def test_checks_are_counted_without_running_them() -> None:
    source = "raise SystemExit\ndef check_a(c): ...\ndef _check_b(c): ...\nif 1:\n    def check_c(c): ...\n"
    assert check_functions(source) == ("check_a",)


def test_every_problem_says_its_kind(base: Path) -> None:
    (base / "general/counter/mutants.yaml").unlink()
    assert all(re.fullmatch(r"[a-z-]+", problem.kind) for problem in audited(base))
