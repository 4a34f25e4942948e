"""A change of knowledge that notices less than before says so: loosened bounds, lost checks, forgotten promises."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from metainfer.ckb.bounds import bound_directions
from metainfer.ckb.check_diff import compare_checks
from metainfer.ckb.kinds import Kind
from metainfer.ckb.store import KnowledgeBase
from metainfer.ckb.weakening import compare
from tests.ckb.builders import contract_data

CKB = Path(__file__).parents[2] / "ckb"

CHECK = '''"""Checks."""
TOLERANCE = 1e-5
_DRAWS = 1000
SIZES = (1, 15, 16, 17)


def check_close(c):
    """Close."""
    for size in SIZES:
        error = measure(c, size)
        if not error <= TOLERANCE:
            yield Finding("check_close", f"size {size}", {"error": error, "rounds": 3})


def check_shares(c):
    for _ in range(20):
        share, expected = draw(c)
        if share < 0.9:
            yield Finding("check_shares", "too few")
        bound = 5 * math.sqrt(max(expected, 4e-3) / _DRAWS)
        if abs(share - expected) > bound:
            yield Finding("check_shares", "too far")


def check_allclose(c):
    if c.config.HEAD_DIM < 4:
        return
    assert abs(c.value) < 2e-3
    torch.testing.assert_close(c.a, c.b, rtol=1e-4, atol=1e-6)
'''


def weakened(old: str, new: str) -> list[str]:
    assert CHECK.count(old) == 1
    return [words for words, weakens, _ in compare_checks(CHECK, CHECK.replace(old, new)) if weakens]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("TOLERANCE = 1e-5", "TOLERANCE = 1e-3", "TOLERANCE: 1e-05 becomes 0.001, a looser bound"),
        ("share < 0.9", "share < 0.5", "check_shares: 0.9 becomes 0.5, a looser bound"),
        ("5 * math", "9 * math", "check_shares: 5 becomes 9, a looser bound"),
        ("4e-3", "4e-2", "check_shares: 0.004 becomes 0.04, a looser bound"),
        ("_DRAWS = 1000", "_DRAWS = 10", "_DRAWS: 1000 becomes 10, a looser bound"),
        ("range(20)", "range(2)", "check_shares: 20 becomes 2, a looser bound"),
        ("< 2e-3", "< 2", "check_allclose: 0.002 becomes 2, a looser bound"),
        ("HEAD_DIM < 4", "HEAD_DIM < 400", "check_allclose: 4 becomes 400, a looser bound"),
        ("rtol=1e-4", "rtol=1e-1", "check_allclose: 0.0001 becomes 0.1, a looser bound"),
        ("SIZES = (1, 15, 16, 17)", "SIZES = (16,)", "SIZES has fewer entries"),
        ("def check_close(c)", "def helper(c)", "check_close is gone"),
        ("if not error <= TOLERANCE:", "if size > 16 and not error <= TOLERANCE:", "joined by `and`, before 0"),
        ('yield Finding("check_shares", "too far")', "pass", "check_shares: 1 places that report a finding, before 2"),
        ("share, expected = draw(c)", "share, expected = draw(c)\n        break", "early ends, before 0"),
        (
            "    assert abs(c.value) < 2e-3\n",
            "    try:\n        assert abs(c.value) < 2e-3\n    except AssertionError:\n        pass\n",
            "places that catch exceptions, before 0",
        ),
        ("def check_allclose(c):", "def check_allclose(c:", "is no longer Python"),
    ],
)
def test_a_check_that_notices_less_is_told_with_the_numbers(old: str, new: str, words: str) -> None:
    found = weakened(old, new)
    assert any(words in line for line in found), found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TOLERANCE = 1e-5", "TOLERANCE = 1e-6"),
        ("share < 0.9", "share < 0.95"),
        ("_DRAWS = 1000", "_DRAWS = 5000"),
        ("range(20)", "range(40)"),
        ("HEAD_DIM < 4", "HEAD_DIM < 2"),
        ("SIZES = (1, 15, 16, 17)", "SIZES = (1, 15, 16, 17, 33)"),
        ('"rounds": 3', '"rounds": 4'),
        ('"""Close."""', '"""Close to float64."""'),
        ('"too few"', '"fewer than promised"'),
        ("def check_shares(c):", "def check_more(c):\n    yield from []\n\n\ndef check_shares(c):"),
    ],
)
def test_a_check_that_notices_as_much_or_more_is_not_called_weaker(old: str, new: str) -> None:
    assert weakened(old, new) == []


def test_what_cannot_be_judged_is_told_to_be_read() -> None:
    new = CHECK.replace("error = measure(c, size)", "error = measure(c, size + 1)")
    assert compare_checks(CHECK, new) == [("check_close is rewritten: compare it by eye", False, Kind.TO_READ)]
    assert compare_checks(CHECK, CHECK) == []


def test_a_number_outside_of_comparisons_is_told_without_a_verdict() -> None:
    old = "def check_a(c):\n    if f(c, 3) > 1:\n        yield 1\n"
    (change,) = compare_checks(old, old.replace("3", "4"))
    assert change == ("check_a: 3 becomes 4, a number whose use is to be read", False, Kind.TO_READ)


def test_every_tolerance_of_this_repository_is_understood() -> None:
    """Making any constant called a tolerance in a check ten times larger must be noticed."""
    tried = 0
    for path in sorted(CKB.glob("*/*/check.py")):
        text = path.read_text("utf-8")
        for node in ast.parse(text).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
                continue
            name = ast.unparse(node.targets[0])
            if "TOLERANCE" in name and isinstance(node.value.value, float):
                tried += 1
                source = ast.get_source_segment(text, node) or ""
                looser = text.replace(source, f"{name} = {node.value.value * 10!r}")
                assert any(change.weakens for change in compare_checks(text, looser)), f"{path}: {source}"
                tighter = text.replace(source, f"{name} = {node.value.value / 10!r}")
                assert not any(change.weakens for change in compare_checks(text, tighter)), f"{path}: {source}"
    assert tried >= 3


def test_a_name_used_both_ways_has_no_direction() -> None:
    tree = ast.parse("N = 3\n\n\ndef check_a(c):\n    if c.x > N:\n        yield 1\n    if c.x < N:\n        yield 2\n")
    (value,) = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value == 3]
    assert value not in bound_directions(tree)


def base(**changes: object) -> dict[str, bytes]:
    mode = {"id": "m", "symptom": "wrong", "trigger": "t", "caught_by": "check_x", "fix": "f", "source": "s"}
    data = contract_data("family/a", "A", failure_modes=[mode], invariants=["x stays", "y stays"])
    mutants = [{"name": n, "file": "exemplars/all.py", "replace": n, "with": "z", "why": f"why {n}"} for n in "pq"]
    return {
        "family/a/contract.yaml": yaml.safe_dump(data | changes).encode(),
        "family/a/mutants.yaml": yaml.safe_dump(mutants).encode(),
        "family/a/check.py": CHECK.encode(),
        "family/a/exemplars/all.py": b"p, q = 1, 2\n",
    }


def told(before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, bool]:
    return {change.words: change.weakens for change in compare(before, after)}


def test_promises_and_failure_modes_that_go_are_told_loudly() -> None:
    found = told(base(), base(version=2, invariants=["x stays"], failure_modes=[]))
    assert found["the invariant “y stays” is gone or reworded"]
    assert found["the failure mode m is forgotten"]


def test_a_scope_is_compared_over_all_facts_not_by_its_words() -> None:
    def scope(old: str, new: str) -> str:
        words = told(base(applies_when=old), base(applies_when=new, version=2))
        return next(line for line in words if line.startswith("applies"))

    assert "in more deployments" in scope("qk_norm and stop", "qk_norm")
    assert "in fewer deployments" in scope("true", 'architecture == "qwen2"')
    assert "in other deployments" in scope("qk_norm", "stop")
    assert "in the same deployments" in scope("not not stop", "stop == true")


def test_a_change_under_an_old_version_is_told() -> None:
    assert "is changed, but its version 1 is not raised" in told(base(), base(title="Another title"))


@pytest.mark.parametrize("name", ["check.py", "mutants.yaml", "exemplars/all.py"])
def test_another_file_under_an_old_version_is_told_too(name: str) -> None:
    before = base()
    changed = before[f"family/a/{name}"].replace(b"why p", b"why").replace(b"1e-5", b"1e-6").replace(b"1, 2", b"1, 3")
    changes = compare(before, before | {f"family/a/{name}": changed})
    assert [change.kind for change in changes if change.is_loud] == [Kind.VERSION_NOT_RAISED]


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("TOLERANCE = 1e-5", "TOLERANCE = 1e-3", Kind.TOLERANCE_RAISED),
        ("TOLERANCE = 1e-5", 'TOLERANCE = float("inf")', Kind.TOLERANCE_RAISED),
        ("share < 0.9", "share < 0.5", Kind.TOLERANCE_RAISED),
        ("range(20)", "range(2)", Kind.RANGE_NARROWED),
        ("SIZES = (1, 15, 16, 17)", "SIZES = (16,)", Kind.RANGE_NARROWED),
        ("def check_close(c)", "def helper(c)", Kind.CHECK_REMOVED),
        ("share, expected = draw(c)", "share, expected = draw(c)\n        break", Kind.CHECK_WEAKENED),
        ("def check_allclose(c):", "def check_allclose(c:", Kind.UNREADABLE),
    ],
)
def test_each_way_to_notice_less_has_its_kind(old: str, new: str, kind: Kind) -> None:
    changes = compare_checks(CHECK, CHECK.replace(old, new))
    assert kind in [change.kind for change in changes if change.weakens]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ({"requires": ["general/x"]}, {"requires": []}, Kind.REQUIRES_DROPPED),
        ({"conflicts": ["general/x"]}, {"conflicts": []}, Kind.CONFLICT_DROPPED),
        ({"applies_when": "true"}, {"applies_when": "stop"}, Kind.SCOPE_NARROWED),
        ({}, {"invariants": []}, Kind.INVARIANT_DROPPED),
        ({}, {"failure_modes": []}, Kind.FAILURE_MODE_DROPPED),
        ({}, {"deprecated": "use another"}, Kind.DEPRECATION),
    ],
)
def test_each_promise_taken_back_has_its_kind(before: dict[str, object], after: dict[str, object], kind: Kind) -> None:
    changes = compare(base(**before), base(**after, version=2))
    assert {change.kind for change in changes if change.weakens} == {kind}


def test_mutants_that_go_are_told_loudly_and_new_ones_plainly() -> None:
    before, after = base(), base()
    after["family/a/mutants.yaml"] = before["family/a/mutants.yaml"].replace(b"name: p", b"name: other")
    found = told(before, after)
    assert found["the mutant p is removed: why p"]
    assert not found["a new mutant other: why p"]


@pytest.mark.parametrize("name", ["contract.yaml", "check.py", "mutants.yaml"])
def test_proof_that_is_deleted_is_told_loudly(name: str) -> None:
    after = {path: data for path, data in base().items() if not path.endswith(name)}
    change = compare(base(), after)[0]
    assert change.weakens
    assert change.path == f"family/a/{name}"


def test_what_does_not_load_is_told_loudly() -> None:
    for name in ("contract.yaml", "mutants.yaml"):
        change = compare(base(), base() | {f"family/a/{name}": b"- ["})[0]
        assert (change.weakens, change.kind) == (True, Kind.UNREADABLE)


def test_what_weakens_comes_first_and_nothing_is_told_of_nothing() -> None:
    after = base(version=2, invariants=["x stays"], title="Another title")
    marks = [change.weakens for change in compare(base(), after)]
    assert marks == sorted(marks, reverse=True)
    assert compare(base(), base()) == []


def test_a_new_contract_is_one_change() -> None:
    (change,) = compare({}, base())
    assert (change.path, change.weakens) == ("family/a/contract.yaml", False)


def test_the_base_compared_with_itself_has_not_changed() -> None:
    files = {
        path.relative_to(CKB).as_posix(): path.read_bytes()
        for contract_id in KnowledgeBase.load(CKB).contracts
        for path in (CKB / contract_id).rglob("*")
        if path.is_file()
    }
    assert compare(files, dict(files)) == []


@pytest.mark.parametrize(
    ("addition", "words"),
    [
        ("check_size = lambda c: []\n", "check_size is a value, before a function or class"),
        ("def abs(x):\n    return 0\n", "abs is a function or class, before a name of Python's own"),
        (
            "from somewhere import lenient as abs\n",
            "abs is the import somewhere.lenient, before a name of Python's own",
        ),
        ("from somewhere import Finding\n", "Finding is the import somewhere.Finding, before"),
    ],
)
def test_a_name_that_comes_to_mean_something_else_is_told_loudly(addition: str, words: str) -> None:
    before = (
        "from metainfer.ckb.checks import Finding\n\n\n"
        "def check_size(c):\n    if abs(c.unit('size')()) > 1:\n        yield Finding('check_size', 'too big')\n\n\n"
    )
    assert [change for change in compare_checks(before, before + addition) if change[1] and change[0].startswith(words)]


def test_less_reach_is_told_loudly() -> None:
    for change, words in (
        ({"deprecated": "Use another."}, "is deprecated: Use another."),
        ({"applies_when": "seed and stop"}, "applies in fewer deployments: seed and stop"),
    ):
        assert told(base(applies_when="seed"), base(**{"applies_when": "seed", "version": 2} | change))[words]
    other = [{"name": "B", "signature": "def B() -> None: ...\n"}]
    assert told(base(), base(units=other, exemplars=[], version=2))["no longer describes A"]


def test_text_that_is_no_python_is_told_and_not_stumbled_over() -> None:
    ((words, weakens, _),) = compare_checks(CHECK, "def check_close(")
    assert words.startswith("is no longer Python")
    assert weakens
    assert compare_checks("def check_close(", CHECK)[0][0].startswith("was not Python before")
