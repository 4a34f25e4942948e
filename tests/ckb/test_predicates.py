"""`applies_when`: what the language accepts, what it refuses and where, and that it means what Python means by it."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.ckb.facts import fact_domains
from metainfer.ckb.predicates import Predicate, PredicateError, implies, parse_predicate, satisfiable

DOMAINS = fact_domains()
BOOLS = [name for name, values in DOMAINS.items() if set(values) == {False, True}]

FACTS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in DOMAINS.items()})
"""Values for all facts, the impossible combinations too."""


def _spelled(value: bool | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(list(DOMAINS)))
    if draw(st.booleans()):
        operator = draw(st.sampled_from(["==", "!="]))
        return f"{name} {operator} {_spelled(draw(st.sampled_from(DOMAINS[name])))}"
    values = draw(st.lists(st.sampled_from(DOMAINS[name]), min_size=1, max_size=3))
    inside = ", ".join(map(_spelled, values))
    operator = draw(st.sampled_from(["in", "not in"]))
    return f"{name} {operator} {draw(st.sampled_from([f'[{inside}]', f'({inside},)']))}"


def expressions(max_leaves: int) -> st.SearchStrategy[str]:
    """Expressions that are both Python and predicates, so that Python itself says what they mean."""
    return st.recursive(
        st.one_of(comparisons(), st.sampled_from([*BOOLS, "True", "False"])),
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + " and ".join(parts) + ")"),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: " or ".join(f"({part})" for part in parts)),
            # Without parentheses too: precedence is part of the language.
            st.tuples(inner, inner, inner).map(lambda p: f"{p[0]} or {p[1]} and not {p[2]}"),
            inner.map(lambda part: f"not {part}"),
        ),
        max_leaves=max_leaves,
    )


@given(expressions(8), FACTS)
def test_a_predicate_means_what_python_means_by_the_same_words(text: str, facts: dict[str, Any]) -> None:
    assert parse_predicate(text)(facts) == bool(eval(text, {"__builtins__": {}}, dict(facts)))


@given(expressions(8))
def test_a_predicate_knows_which_facts_it_mentions(text: str) -> None:
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert parse_predicate(text).facts == names


@given(expressions(3), expressions(3), FACTS)
def test_implication_and_overlap_are_true_of_every_combination(one: str, other: str, facts: dict[str, Any]) -> None:
    first, second = parse_predicate(one), parse_predicate(other)
    counterexample, witness = implies(first, second), satisfiable(first, second)
    if counterexample is None:
        assert second(facts) or not first(facts)
    else:
        assert first(counterexample)
        assert not second(counterexample)
    if witness is None:
        assert not (first(facts) and second(facts))
    else:
        assert first(witness)
        assert second(witness)


def test_true_and_false_stand_for_everything_and_nothing() -> None:
    assert parse_predicate("true")({})
    assert not parse_predicate("false")({})
    assert parse_predicate("tied_embeddings == true")({"tied_embeddings": True})


def test_line_breaks_and_indentation_do_not_matter() -> None:
    folded = parse_predicate('architecture in ["qwen2",\n   "qwen3"]\n  and qk_norm\n')
    assert folded.text == 'architecture in ["qwen2", "qwen3"] and qk_norm'


@pytest.mark.parametrize(
    ("text", "column", "complaint"),
    [
        ('architecture == "qwen4"', 17, 'one of "qwen2", "qwen3"; did you mean \'qwen3\'?'),
        ('qk_norm and achitecture == "qwen2"', 13, "no fact named achitecture; did you mean architecture?"),
        ("hidden_size == 896", 1, "no fact named hidden_size"),
        ('qk_norm == "qwen3"', 12, "qk_norm is never 'qwen3'; it is one of false, true"),
        ("qk_norm == 1", 12, "qk_norm is never 1"),
        ('weight_dtype in ["bf16", 16]', 26, "weight_dtype is never 16"),
        ("weight_dtype", 1, 'weight_dtype is not true or false; compare it with one of "fp32", "bf16"'),
        ("weight_dtype == activation_dtype", 17, "weight_dtype is never activation_dtype"),
        ("weight_dtype == None", 17, "weight_dtype is never None"),
        ('weight_dtype in "bf16"', 17, "after `in` comes a list"),
        ("weight_dtype in []", 17, "after `in` comes a list"),
        ('"bf16" == weight_dtype', 1, "the left side of a comparison is a fact"),
        ('weight_dtype < "fp32"', 1, "compared by ==, !=, in and not in only"),
        ('"bf16"', 1, "only facts, and, or, not"),
        ("stop or 1", 9, "only facts, and, or, not"),
        ("chat if stop else seed", 1, "only facts, and, or, not"),
        ('platform.startswith("cpu")', 1, "only facts, and, or, not"),
        ("(lambda: stop)()", 1, "only facts, and, or, not"),
        ('__import__("os")', 1, "only facts, and, or, not"),
        ("[x for x in stop]", 1, "only facts, and, or, not"),
        ("stop := chat", 6, "not an expression"),
        ("stop and", 8, "not an expression"),
        ("stop; chat", 5, "not an expression"),
        ("", 1, "not an expression"),
        ("ｓｔｏｐ", 1, "plain ASCII"),
        ("stop and \0", 10, "plain ASCII"),
        ('weight_dtype == "\\x62f16"', 18, "without backslashes"),
    ],
)
def test_what_is_not_in_the_language_is_refused_where_it_stands(text: str, column: int, complaint: str) -> None:
    with pytest.raises(PredicateError) as caught:
        parse_predicate(text)
    assert complaint in str(caught.value)
    assert caught.value.column == column


@pytest.mark.parametrize("text", ["not " * 400 + "stop", "(" * 300 + "stop" + ")" * 300, "stop or " * 400 + "stop"])
def test_deep_and_long_predicates_are_refused_and_harm_nobody(text: str) -> None:
    with pytest.raises(PredicateError):
        parse_predicate(text)


@given(st.text(max_size=60))
def test_any_text_is_a_predicate_or_a_predicate_error(text: str) -> None:
    try:
        predicate = parse_predicate(text)
    except PredicateError as refused:
        predicate = refused
    assert isinstance(predicate, Predicate) or predicate.column >= 1


def test_a_comparison_chain_is_refused() -> None:
    with pytest.raises(PredicateError):
        parse_predicate("stop == chat == seed")
