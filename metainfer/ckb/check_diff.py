"""Compares two texts of one `check.py`: does the new one still notice what the old one did?

A number is judged by how it is used. In `if error > TOLERANCE: yield …` a larger number notices less; in
`if share < 0.8: yield …` a smaller one does; in `range(50)` fewer rounds do. Where use says nothing, the change is
reported for a person to judge.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

from metainfer.ckb.bounds import bound_directions, is_number, targets
from metainfer.ckb.kinds import Kind

_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class CheckChange(NamedTuple):
    """One change in words. `weakens`: the check notices less."""

    words: str
    weakens: bool
    kind: Kind


def compare_checks(old: str, new: str) -> list[CheckChange]:
    """Changes in words, each with whether it weakens the check."""
    try:
        before = ast.parse(old)
    except _UNREADABLE:
        return [CheckChange("was not Python before, so nothing can be compared", False, Kind.TO_READ)]
    try:
        now = ast.parse(new)
    except _UNREADABLE as error:
        return [CheckChange(f"is no longer Python: {error}", True, Kind.UNREADABLE)]
    rest = [ast.dump(_rest(tree)) for tree in (before, now)]
    changes = [*_compare_functions(before, now), *_compare_constants(before, now), *_compare_names(before, now)]
    if rest[0] != rest[1]:
        changes.append(CheckChange("classes or other statements of the file are revised", False, Kind.TO_READ))
    return changes


def _compare_functions(before: ast.Module, now: ast.Module) -> Iterator[CheckChange]:
    old, new = _functions(before), _functions(now)
    bounds_before, bounds_now = bound_directions(before), bound_directions(now)
    for name, function in old.items():
        if name not in new:
            is_check = name.startswith("check_")
            yield CheckChange(f"{name} is gone", is_check, Kind.CHECK_REMOVED if is_check else Kind.TO_READ)
        elif ast.dump(_masked(function)) == ast.dump(_masked(new[name])):
            yield from _compare_numbers(name, function, new[name], bounds_before)
        else:
            yield from _compare_bodies(name, function, new[name], bounds_before, bounds_now)
    for name in new.keys() - old.keys():
        if name.startswith("check_"):
            yield CheckChange(f"a new check {name}", False, Kind.ADDED)


def _compare_constants(before: ast.Module, now: ast.Module) -> Iterator[CheckChange]:
    """Assignments of the module's own level."""
    old, new, bounds = dict(_assignments(before)), dict(_assignments(now)), bound_directions(before)
    for name, value in old.items():
        if name not in new or ast.dump(value) == ast.dump(new[name]):
            continue
        if ast.dump(_masked(value)) == ast.dump(_masked(new[name])):
            yield from _compare_numbers(name, value, new[name], bounds)
        else:
            fewer = _length(new[name]) < _length(value)
            lost = isinstance(value, ast.Constant) and bounds.get(value, 0) != 0
            words = "has fewer entries" if fewer else "is a bound, and no longer a number" if lost else "is rewritten"
            told = f"{name} {words}: {_short(value)} becomes {_short(new[name])}"
            kind = Kind.RANGE_NARROWED if fewer else Kind.TOLERANCE_RAISED if lost else Kind.TO_READ
            yield CheckChange(told, fewer or lost, kind)


def _compare_names(before: ast.Module, now: ast.Module) -> Iterator[CheckChange]:
    """Names that mean something else now: a check assigned over, a builtin or a helper replaced."""
    old, new = _bound(before), _bound(now)
    used = {node.id for node in ast.walk(before) if isinstance(node, ast.Name)}
    for name, binding in new.items():
        if name in old and old[name] != binding:
            yield CheckChange(f"{name} is {binding}, before {old[name]}", True, Kind.CHECK_WEAKENED)
        elif name not in old and name in used:
            told = f"{name} is {binding}, before a name of Python's own"
            yield CheckChange(told, True, Kind.CHECK_WEAKENED)
        elif name not in old and not binding.startswith("a function"):
            yield CheckChange(f"{name} is new: {binding}", False, Kind.ADDED)


def _bound(tree: ast.Module) -> dict[str, str]:
    """What each name of the module's own level last stands for, in words."""
    names: dict[str, str] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names[name] = "a function or class"
            case ast.Import(names=aliases):
                names.update({alias.asname or alias.name: f"the import {alias.name}" for alias in aliases})
            case ast.ImportFrom(module=module, names=aliases):
                names.update({a.asname or a.name: f"the import {module}.{a.name}" for a in aliases})
            case _:
                names.update(dict.fromkeys((name for name, _ in targets(node)), "a value"))
    return names


def _compare_numbers(name: str, old: ast.AST, new: ast.AST, bounds: dict[ast.Constant, int]) -> Iterator[CheckChange]:
    """Two trees that differ in numbers at most."""
    for before, now in zip(_numbers(old), _numbers(new), strict=True):
        a, b = _value(before), _value(now)
        if a == b:
            continue
        direction = bounds.get(before, 0)
        weakens = direction * (b - a) > 0
        judged = "a looser bound" if weakens else "a tighter bound" if direction else "a number whose use is to be read"
        # A bound that a larger number loosens is a tolerance; one that a smaller whole number does counts trials.
        narrowed = weakens and direction < 0 and isinstance(before.value, int) and isinstance(now.value, int)
        kind = Kind.RANGE_NARROWED if narrowed else Kind.TOLERANCE_RAISED if weakens else Kind.TO_READ
        yield CheckChange(f"{name}: {a:g} becomes {b:g}, {judged}", weakens, kind)


def _compare_bodies(
    name: str,
    old: _Function,
    new: _Function,
    bounds_before: dict[ast.Constant, int],
    bounds_now: dict[ast.Constant, int],
) -> Iterator[CheckChange]:
    """Two functions of different shape: what can be counted is counted, the rest is for a person."""
    found = False
    for kinds, words, more_is_worse, kind in (
        ((ast.Yield, ast.YieldFrom, ast.Assert, ast.Raise), "places that report a finding", False, Kind.CHECK_WEAKENED),
        ((ast.For, ast.While, ast.comprehension), "loops over cases", False, Kind.RANGE_NARROWED),
        ((ast.ExceptHandler,), "places that catch exceptions", True, Kind.CHECK_WEAKENED),
        ((ast.Return, ast.Continue, ast.Break), "early ends", True, Kind.CHECK_WEAKENED),
        ((ast.And,), "conditions joined by `and`", True, Kind.CHECK_WEAKENED),
    ):
        a, b = _count(old, kinds), _count(new, kinds)
        if (b > a) if more_is_worse else (b < a):
            found = True
            yield CheckChange(f"{name}: {b} {words}, before {a}", True, kind)
    a_max, b_max = _loosest(old, bounds_before), _loosest(new, bounds_now)
    if a_max is not None and b_max is not None and b_max > a_max:
        found = True
        told = f"{name}: its loosest tolerance is {b_max:g}, before {a_max:g}"
        yield CheckChange(told, True, Kind.TOLERANCE_RAISED)
    if not found:
        yield CheckChange(f"{name} is rewritten: compare it by eye", False, Kind.TO_READ)


def _loosest(function: ast.AST, bounds: dict[ast.Constant, int]) -> float | None:
    values = [_value(node) for node in _numbers(function) if bounds.get(node, 0) > 0]
    return max((value for value in values if 0 < value < 1), default=None)


def _functions(tree: ast.Module) -> dict[str, _Function]:
    """Top-level functions and methods, by qualified name."""
    found: dict[str, _Function] = {}
    for node in tree.body:
        if isinstance(node, _Function):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found.update({f"{node.name}.{item.name}": item for item in node.body if isinstance(item, _Function)})
    return found


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def _rest(tree: ast.Module) -> ast.Module:
    """What is neither a function nor a simple assignment nor an import."""
    rest = copy.deepcopy(tree)
    compared = _Function | ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom
    rest.body = [node for node in rest.body if not isinstance(node, compared) and not _is_docstring(node)]
    for node in rest.body:
        if isinstance(node, ast.ClassDef):
            node.body = [item for item in node.body if not isinstance(item, _Function) and not _is_docstring(item)]
    return rest


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _numbers(tree: ast.AST) -> list[ast.Constant]:
    """Numbers that may decide something: those within `Finding(…)` only decorate."""
    found: list[ast.Constant] = []
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Constant) and is_number(node):
            found.append(node)
        if not _is_finding(node):
            pending += ast.iter_child_nodes(node)
    return found


def _value(node: ast.Constant) -> float:
    return float(node.value)  # type: ignore[arg-type]  # _numbers yields int and float only


def _masked(tree: ast.AST) -> ast.AST:
    """A copy without numbers, docstrings and the words of findings."""
    masked = copy.deepcopy(tree)
    for node in ast.walk(masked):
        if isinstance(node, ast.Constant) and is_number(node):
            node.value = 0
        elif isinstance(node, ast.Call) and _is_finding(node):
            node.args, node.keywords = [], []
        elif isinstance(node, _Function) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return masked


def _is_finding(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"


def _count(tree: ast.AST, kinds: tuple[type[ast.AST], ...]) -> int:
    return sum(isinstance(node, kinds) for node in ast.walk(tree))


def _length(node: ast.expr) -> int:
    if isinstance(node, ast.Dict):
        return len(node.keys)
    return len(node.elts) if isinstance(node, ast.Tuple | ast.List | ast.Set) else 1


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else text[:57] + "..."
