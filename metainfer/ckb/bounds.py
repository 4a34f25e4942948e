"""Which way each number of a check points: does a larger one notice less, or more?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

_TOLERANCE_NAME = re.compile(r"tol|eps|slack|margin|atol|rtol|max_error|threshold", re.IGNORECASE)
_UPWARD: dict[type[ast.cmpop], int] = {ast.Gt: 1, ast.GtE: 1, ast.Lt: -1, ast.LtE: -1}
"""The sign of a comparison: `a > b` becomes false as b grows."""


def bound_directions(tree: ast.Module) -> dict[ast.Constant, int]:
    """For each number whose use says so: +1 if a larger one notices less, -1 if a smaller one does.

    Constants and local names take the direction of their uses; a name used both ways, or in no comparison, has none
    unless it is called like a tolerance.
    """
    return _Directions(tree).numbers


class _Directions:
    def __init__(self, tree: ast.Module) -> None:
        self.numbers: dict[ast.Constant, int] = {}
        self._names: dict[str, set[int]] = {}
        self._values = [pair for node in ast.walk(tree) for pair in targets(node)]
        for node in ast.walk(tree):
            self._visit(node)
        # A tolerance may be computed from another: three rounds reach as far as anyone writes.
        for _ in range(3):
            for name, value in self._values:
                self._bound(value, self._of_name(name))

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.If(test=test):
                self._truth(test, -1 if _only_leaves(node.body) else 1)
            case ast.IfExp(test=test) | ast.While(test=test):
                self._truth(test, 1)
            case ast.Assert(test=test):
                self._truth(test, -1)
            case ast.Call(func=ast.Name(id="range"), args=arguments):
                for argument in arguments[-1:] if len(arguments) < 3 else arguments[1:2]:
                    self._bound(argument, -1)
            case ast.Call(keywords=keywords):
                for keyword in keywords:
                    if keyword.arg and (_TOLERANCE_NAME.search(keyword.arg) or keyword.arg in ("abs", "rel")):
                        self._bound(keyword.value, 1)

    def _truth(self, node: ast.expr, sign: int) -> None:
        """`sign` is +1 where a true `node` leads to a finding, -1 where it prevents one."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._truth(operand, -sign)
            case ast.BoolOp(values=values):
                for value in values:
                    self._truth(value, sign)
            case ast.Compare(left=left, ops=operators, comparators=comparators):
                operands = [left, *comparators]
                for operator, a, b in zip(operators, operands, comparators, strict=False):
                    self._bound(b, _UPWARD.get(type(operator), 0) * sign)
                    self._bound(a, -_UPWARD.get(type(operator), 0) * sign)

    def _bound(self, node: ast.expr, direction: int) -> None:
        if direction == 0:
            return
        match node:
            case ast.Constant() if is_number(node):
                self.numbers[node] = direction
            case ast.Name(id=name):
                self._names.setdefault(name, set()).add(direction)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                self._bound(operand, -direction)
            case ast.BinOp(left=left, op=operator, right=right):
                self._bound(left, direction)
                self._bound(right, -direction if isinstance(operator, ast.Sub | ast.Div) else direction)
            case ast.IfExp(body=body, orelse=orelse):
                self._bound(body, direction)
                self._bound(orelse, direction)
            case ast.Call(func=ast.Name(id="max" | "min" | "float" | "int" | "abs"), args=arguments):
                for argument in arguments:
                    self._bound(argument, direction)
            case ast.Call(func=ast.Attribute(attr="sqrt"), args=arguments):
                for argument in arguments:
                    self._bound(argument, direction)

    def _of_name(self, name: str) -> int:
        uses = self._names.get(name, set())
        if len(uses) == 1:
            return next(iter(uses))
        return 1 if not uses and _TOLERANCE_NAME.search(name) else 0


def targets(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value


def _only_leaves(body: Iterable[ast.stmt]) -> bool:
    """Whether a branch does nothing but skip what follows."""
    return all(
        isinstance(statement, ast.Continue | ast.Break | ast.Pass)
        or (isinstance(statement, ast.Return) and statement.value is None)
        for statement in body
    )


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
