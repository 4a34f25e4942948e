"""Folding decides branches on `S`, and touches nothing else."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.generate.folding import FoldError, fold

FACTS: dict[str, bool | int | str] = {"bias": True, "norm": False, "dtype": "bf16"}


def folded(source: str) -> str:
    return fold(textwrap.dedent(source), FACTS, "exemplar.py")


def test_a_true_branch_replaces_its_if_and_keeps_the_comment_above() -> None:
    assert folded("""\
        def f(x):
            # Biases come with this family.
            if S.bias:
                x = x + 1
            return x
        """) == textwrap.dedent("""\
        def f(x):
            # Biases come with this family.
            x = x + 1
            return x
        """)


def test_a_false_branch_leaves_nothing() -> None:
    assert folded("if S.norm:\n    import os\nx = 1\n") == "x = 1\n"


def test_an_elif_chain_keeps_the_one_chosen_arm() -> None:
    source = """\
        if S.dtype == "fp32":
            a = 1
        elif S.dtype == "bf16":
            a = 2
        else:
            a = 3
        """
    assert folded(source) == "a = 2\n"


def test_a_decided_elif_under_an_undecided_if_becomes_else() -> None:
    assert folded("if x:\n    a = 1\nelif S.bias:\n    a = 2\nelse:\n    a = 3\n") == (
        "if x:\n    a = 1\nelse:\n    a = 2\n"
    )


def test_an_undecided_part_of_a_test_stays() -> None:
    assert folded("if S.bias and x:\n    a = 1\n") == "if x:\n    a = 1\n"
    assert folded("if x or S.norm:\n    a = 1\n") == "if x:\n    a = 1\n"


def test_a_conditional_expression_keeps_its_parentheses() -> None:
    assert folded("y = (a + b if S.bias else c) * 2\n") == "y = (a + b) * 2\n"


def test_constant_code_without_s_is_left_alone() -> None:
    source = "if True:\n    a = 1\nb = 1 if False else 2\n"
    assert folded(source) == source


def test_an_emptied_body_gets_pass() -> None:
    assert folded("def f():\n    if S.norm:\n        return 1\n") == "def f():\n    pass\n"


@pytest.mark.parametrize(
    "source", ["x = S.bias\n", "f(S)\n", "while S.bias:\n    x()\n", "y = [i for i in z if S.bias]\n"]
)
def test_any_other_use_of_s_is_refused_with_the_line(source: str) -> None:
    with pytest.raises(FoldError, match=r"exemplar\.py:1"):
        folded(source)


def test_an_unknown_fact_is_refused_by_name() -> None:
    with pytest.raises(FoldError, match=r"exemplar\.py:2.*no fact named 'rope'"):
        folded("x = 1\nif S.rope:\n    pass\n")


tests = st.recursive(
    st.sampled_from(["S.bias", "S.norm", "S.dtype == 'bf16'", "S.dtype in ('fp32', 'int8')", "p", "q"]),
    lambda inner: st.one_of(
        inner.map(lambda t: f"not ({t})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    ),
    max_leaves=6,
)


@given(st.lists(tests, min_size=1, max_size=3), st.booleans(), st.booleans(), st.booleans())
def test_folded_code_does_what_the_unfolded_code_did(conditions: list[str], p: bool, q: bool, last: bool) -> None:
    arms = [f"{'if' if i == 0 else 'elif'} {c}:\n    out = {i}" for i, c in enumerate(conditions)]
    if last:
        arms.append("else:\n    out = 99")
    source = "out = -1\n" + "\n".join(arms) + f"\nexp = 1 if {conditions[0]} else 2\n"

    class S:
        bias, norm, dtype = True, False, "bf16"

    before: dict[str, Any] = {"S": S, "p": p, "q": q}
    after: dict[str, Any] = {"p": p, "q": q}
    exec(source, before)
    code = folded(source)
    exec(code, after)
    assert (before["out"], before["exp"]) == (after["out"], after["exp"])
    assert "S." not in code
    ast.parse(code)


@pytest.mark.parametrize(
    "source",
    ["x = " + "a and " * 20_000 + "a", "import a" + ".b" * 30_000, "from a" + ".b" * 30_000 + " import c",
     "x = " + "a and b or " * 20_000 + "c", "x = " + "not " * 100 + "a", "x = a" + "()" * 100,
     "x = " + "-" * 9000 + "1", "if a:\n    pass\n" + "elif a:\n    pass\n" * 100],
    ids=["and", "dots", "dots of a module", "and and or", "not", "calls", "signs", "elif"],
)  # fmt: skip
def test_what_would_overflow_the_parser_is_refused_before_it(source: str) -> None:
    """libcst has no limit of its own: it would end the process, and with it the run and what it has paid for."""
    with pytest.raises(FoldError, match=r"exemplar\.py.*nests too deeply"):
        folded(source)


def test_what_people_write_is_shallow_enough() -> None:
    chain, nested = " and ".join(["a"] * 40), "(" * 30 + "a" + ")" * 30
    source = f"x = {chain}\ny = {nested}\nz = [{', '.join('1' * 5000)}]\n" + "a = 1\n" * 5000
    assert folded(source) == source
