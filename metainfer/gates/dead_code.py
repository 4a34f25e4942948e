"""One deployment, one path: no leftovers of the generator, no branch that is decided already, nothing unused."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from metainfer.gates.source_rules import Complaint


def check_path(tree: ast.Module) -> Iterator[Complaint]:
    """Complaints about `S.` left over and about conditions that nothing at run time can change."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "S":
            yield node.lineno, "S is left over from an exemplar; the specializer folds it away"
        elif isinstance(node, ast.ImportFrom) and node.level == 1 and node.module in ("facts", "units"):
            yield node.lineno, f"imports from .{node.module}, which engines do not have"
        elif isinstance(node, ast.If | ast.IfExp | ast.Assert | ast.While) and not _is_endless(node):
            yield from _check_condition(node.test)
        elif isinstance(node, ast.BoolOp) and any(_is_bool(value) for value in node.values):
            yield node.lineno, f"`{ast.unparse(node)}` has a constant operand"


def _check_condition(test: ast.expr) -> Iterator[Complaint]:
    parts = list(ast.walk(test))
    if any(isinstance(part, ast.Call | ast.Await | ast.NamedExpr | ast.Subscript) for part in parts):
        return
    words = {part.id for part in parts if isinstance(part, ast.Name)} - {"config"}
    words |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
    if not words:
        yield test.lineno, f"the condition `{ast.unparse(test)}` is constant"
    elif all(word.isupper() for word in words - {"typing"}) and "TYPE_CHECKING" not in words:
        yield test.lineno, f"the deployment decides `{ast.unparse(test)}` once and for all; only one branch is needed"


def _is_endless(node: ast.AST) -> bool:
    """`while True`, which says what it does."""
    return isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and node.test.value is True


def _is_bool(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def unused_definitions(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, int, str]]:
    """(module, line, message) for private functions, classes, methods and constants that nothing mentions."""
    used = Counter(name for tree in trees.values() for node in ast.walk(tree) for name in _mentions(node))
    for module, tree in trees.items():
        for name, line in _definitions(tree):
            if not used[name]:
                yield module, line, f"{name} is defined and never used"


def _mentions(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    elif isinstance(node, ast.ImportFrom | ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield node.value  # annotations and pydantic name things in quotes


def _definitions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name.startswith("_"):
            yield node.name, node.lineno
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from ((t.id, node.lineno) for t in targets if isinstance(t, ast.Name) and t.id.isupper())
    methods = [node for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef) for node in owner.body]
    for node in methods:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            private = node.name.startswith("_") and not node.name.endswith("__")
            yield from [(node.name, node.lineno)] if private else []
