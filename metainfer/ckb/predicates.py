"""`applies_when`: a small, closed, typed language over facts. Parsed by Python's grammar, never evaluated by it.

    architecture in ["qwen2", "qwen3"] and weight_dtype == "bf16" and not tied_embeddings

A predicate is built from facts with two values (as they stand), `==`, `!=`, `in` and `not in` between a fact and
literals, `and`, `or`, `not`, `true` and `false`. Unknown facts, and values that a fact can never have, are errors when
the predicate is read.
"""

from __future__ import annotations

import ast
import difflib
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from metainfer.ckb.facts import fact_domains
from metainfer.errors import InputError

Test = Callable[[Mapping[str, Any]], bool]
_MAX_CHARACTERS = 2000
_MAX_DEPTH = 32
_NOT_PLAIN = re.compile(r"[^ -\[\]-~]")
_CONSTANTS = {"true": True, "false": False, "True": True, "False": False}


class PredicateError(InputError):
    """A predicate is not in the language. `column` counts from 1 within the predicate."""

    def __init__(self, message: str, column: int) -> None:
        self.column = column
        super().__init__(f"column {column}: {message}")


@dataclass(frozen=True)
class Predicate:
    """A parsed `applies_when`."""

    text: str
    facts: frozenset[str]
    """The facts it mentions."""
    _test: Test = field(repr=False, compare=False)

    def __call__(self, facts: Mapping[str, Any]) -> bool:
        """Whether it holds for `facts`, a mapping with a value for every fact."""
        return self._test(facts)


@functools.lru_cache(maxsize=1 << 15)
def parse_predicate(text: str) -> Predicate:
    """Read a predicate. Raises PredicateError naming the column and what is wrong."""
    if len(text) > _MAX_CHARACTERS:
        raise PredicateError(f"{len(text)} characters; a predicate has at most {_MAX_CHARACTERS}", 1)
    source = " ".join(text.split())
    # Python reads ﬁ as fi and full-width letters as plain ones; a reader of the predicate would not.
    if stranger := _NOT_PLAIN.search(source):
        raise PredicateError(
            f"{stranger[0]!r} is not allowed; write plain ASCII without backslashes", stranger.start() + 1
        )
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        column = getattr(error, "offset", None) or max(len(source), 1)
        raise PredicateError(f"not an expression: {getattr(error, 'msg', error)}", column) from error
    mentioned: set[str] = set()
    test = _compile(tree.body, mentioned, 0)
    return Predicate(source, frozenset(mentioned), test)


def satisfiable(*predicates: Predicate) -> dict[str, Any] | None:
    """Facts for which all of them hold at once, or None. Tries every value of every fact mentioned."""
    return _find(lambda facts: all(predicate(facts) for predicate in predicates), predicates)


def implies(narrow: Predicate, wide: Predicate) -> dict[str, Any] | None:
    """Facts for which `narrow` holds and `wide` does not: the counterexample, or None if `narrow` implies `wide`."""
    return _find(lambda facts: narrow(facts) and not wide(facts), (narrow, wide))


def _find(holds: Test, predicates: Iterable[Predicate]) -> dict[str, Any] | None:
    names = sorted(frozenset().union(*(predicate.facts for predicate in predicates)))
    for values in itertools.product(*(_DOMAINS[name] for name in names)):
        facts = dict(zip(names, values, strict=True))
        if holds(facts):
            return facts
    return None


def _compile(node: ast.expr, mentioned: set[str], depth: int) -> Test:
    if depth > _MAX_DEPTH:
        raise _error(node, f"nested more than {_MAX_DEPTH} deep")
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [_compile(value, mentioned, depth + 1) for value in values]
            return lambda facts: all(part(facts) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=values):
            parts = [_compile(value, mentioned, depth + 1) for value in values]
            return lambda facts: any(part(facts) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _compile(operand, mentioned, depth + 1)
            return lambda facts: not inner(facts)
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return _comparison(left, operator, right, mentioned)
        case ast.Constant(value=bool() as constant):
            return lambda facts: constant
        case ast.Name(id=name) if name in _CONSTANTS:
            constant = _CONSTANTS[name]
            return lambda facts: constant
        case ast.Name(id=name):
            if set(_domain(node)) != {False, True}:
                raise _error(node, f"{name} is not true or false; compare it with one of {_options(name)}")
            mentioned.add(name)
            return lambda facts: bool(facts[name])
    raise _error(node, "only facts, and, or, not, ==, !=, in, not in, true and false are allowed")


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr, mentioned: set[str]) -> Test:
    if not isinstance(left, ast.Name):
        raise _error(left, "the left side of a comparison is a fact")
    name = left.id
    domain = _domain(left)
    mentioned.add(name)
    match operator:
        case ast.Eq() | ast.NotEq():
            value = _literal(right, name, domain)
            wanted = isinstance(operator, ast.Eq)
            return lambda facts: (facts[name] == value) is wanted
        case ast.In() | ast.NotIn():
            if not isinstance(right, ast.List | ast.Tuple) or not right.elts:
                raise _error(right, 'after `in` comes a list of values, as in ["qwen2", "qwen3"]')
            values = {_literal(element, name, domain) for element in right.elts}
            wanted = isinstance(operator, ast.In)
            return lambda facts: (facts[name] in values) is wanted
    raise _error(left, "facts are compared by ==, !=, in and not in only")


def _literal(node: ast.expr, fact: str, domain: tuple[Any, ...]) -> bool | str:
    value: object = None
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        value = _CONSTANTS[node.id]
    elif isinstance(node, ast.Constant):
        value = node.value
    # `True == 1` in Python; a predicate that says 1 for true is a mistake all the same.
    if not isinstance(value, bool | str) or value not in domain:
        near = difflib.get_close_matches(str(value), [str(option) for option in domain], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise _error(node, f"{fact} is never {ast.unparse(node)}; it is one of {_options(fact)}{hint}")
    return value


def _domain(node: ast.Name) -> tuple[Any, ...]:
    domain = _DOMAINS.get(node.id)
    if domain is None:
        near = difflib.get_close_matches(node.id, _DOMAINS, 1)
        hint = f"did you mean {near[0]}?" if near else f"known facts are {', '.join(_DOMAINS)}"
        raise _error(node, f"there is no fact named {node.id}; {hint}")
    return domain


def _options(fact: str) -> str:
    return ", ".join("true" if v is True else "false" if v is False else f'"{v}"' for v in _DOMAINS[fact])


def _error(node: ast.expr, message: str) -> PredicateError:
    return PredicateError(message, node.col_offset + 1)


_DOMAINS = fact_domains()
