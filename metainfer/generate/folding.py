"""Folds the frozen namespace `S` out of an exemplar, and nothing else.

An exemplar may *branch* on `S.<fact>`: in the test of an `if` statement or of a conditional expression, alone or
under `not`, `and`, `or`, `==`, `!=`, `in` and `not in` with literals. The branch that the facts choose stays; the
others go, so an operand beside `S` must be free of effects. This is no evaluator: code that does not mention `S` is
left as it is, even where it is constant.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from metainfer.errors import InputError

_MAX_DEPTH = 80
"""Levels of nesting in an exemplar or a file that was written; what people write has less than half of it."""
FactValue = bool | int | str
Statement = cst.BaseStatement


class FoldError(InputError):
    """An exemplar uses `S` where nothing may depend on it, or names a fact that does not exist."""


def fold(source: str, facts: Mapping[str, FactValue], filename: str) -> str:
    """Return `source` with every branch on `S` decided by `facts`.

    Raises FoldError with `filename:line` if `S` is used for anything but branching.
    """
    wrapper = MetadataWrapper(parse(source, filename))
    folder = _Folder(facts, filename)
    folded = wrapper.visit(folder)
    _refuse_leftovers(folded, filename)
    return folded.code


def parse(source: str, filename: str) -> cst.Module:
    """Parse an exemplar. Raises FoldError with `filename:line` on a syntax error, or where it nests too deeply."""
    _require_shallow(source, filename)
    try:
        return cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise FoldError(f"{filename}:{error.editor_line}: {error.message}") from error


def _require_shallow(source: str, filename: str) -> None:
    """Refuse what would be too deep for libcst, whose parser has no limit: it would end the whole process.

    Chains of `and` and dotted names are flat in the tree of `ast`, and as deep as they are long in that of libcst.
    """
    try:
        waiting: list[tuple[ast.AST, int, int]] = [(ast.parse(source), 0, 1)]
    except SyntaxError as error:
        raise FoldError(f"{filename}:{error.lineno or 1}: {error.msg}") from error
    except ValueError as error:
        raise FoldError(f"{filename}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise FoldError(f"{filename}: nests too deeply to be read") from error
    while waiting:
        node, depth, line = waiting.pop()
        line = getattr(node, "lineno", line)
        depth += 1 + _chained(node)
        if depth > _MAX_DEPTH:
            raise FoldError(f"{filename}:{line}: nests too deeply to be read; break it into smaller statements")
        waiting += ((child, depth, line) for child in ast.iter_child_nodes(node))


def _chained(node: ast.AST) -> int:
    """Levels of libcst's tree that are none of `ast`'s."""
    if isinstance(node, ast.BoolOp):
        return len(node.values)
    names = node.module if isinstance(node, ast.ImportFrom) else node.name if isinstance(node, ast.alias) else ""
    return (names or "").count(".")


class _Folder(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, facts: Mapping[str, FactValue], filename: str) -> None:
        super().__init__()
        self._facts = facts
        self._filename = filename

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if _is_s(node.value) and node.attr.value not in self._facts:
            line = self.get_metadata(PositionProvider, node).start.line
            raise FoldError(
                f"{self._filename}:{line}: there is no fact named {node.attr.value!r}; "
                f"known facts are {', '.join(sorted(self._facts))}"
            )

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        known, test = self._simplify(updated_node.test)
        if known is None:
            return updated_node.with_changes(test=test)
        chosen = updated_node.body if known else updated_node.orelse
        # Keep the parentheses of the whole, or `(a if S.x else b) * c` would change its meaning.
        return chosen.with_changes(lpar=[*updated_node.lpar, *chosen.lpar], rpar=[*chosen.rpar, *updated_node.rpar])

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body = self._fold_body(updated_node.body)
        return updated_node.with_changes(body=body or [_PASS])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return updated_node.with_changes(body=self._fold_body(updated_node.body))

    def _fold_body(self, body: Sequence[Statement]) -> list[Statement]:
        folded: list[Statement] = []
        for statement in body:
            folded += self._fold_if(statement) if isinstance(statement, cst.If) else [statement]
        return folded

    def _fold_if(self, node: cst.If) -> list[Statement]:
        """The statements that stand for `node` once its tests on `S` are decided."""
        known, test = self._simplify(node.test)
        if known is None:
            return [node.with_changes(test=test, orelse=self._fold_orelse(node.orelse))]
        if known:
            return _splice(node.body, node.leading_lines)
        if isinstance(node.orelse, cst.If):
            return self._fold_if(node.orelse.with_changes(leading_lines=node.leading_lines))
        if isinstance(node.orelse, cst.Else):
            return _splice(node.orelse.body, node.leading_lines)
        return []

    def _fold_orelse(self, orelse: cst.If | cst.Else | None) -> cst.If | cst.Else | None:
        if not isinstance(orelse, cst.If):
            return orelse
        known, test = self._simplify(orelse.test)
        if known is None:
            return orelse.with_changes(test=test, orelse=self._fold_orelse(orelse.orelse))
        if known:
            return cst.Else(body=orelse.body, leading_lines=orelse.leading_lines)
        return self._fold_orelse(orelse.orelse)

    def _simplify(self, test: cst.BaseExpression) -> tuple[bool | None, cst.BaseExpression]:
        """Decide `test` if the facts do; else return what is left of it."""
        if _is_fact(test):
            return bool(self._facts[test.attr.value]), test  # type: ignore[attr-defined]
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            known, rest = self._simplify(test.expression)
            return (None if known is None else not known), test.with_changes(expression=rest)
        if isinstance(test, cst.BooleanOperation):
            return self._simplify_boolean(test)
        if isinstance(test, cst.Comparison) and _is_fact(test.left) and len(test.comparisons) == 1:
            return self._compare(test), test
        return None, test

    def _simplify_boolean(self, test: cst.BooleanOperation) -> tuple[bool | None, cst.BaseExpression]:
        decisive = isinstance(test.operator, cst.Or)
        left_known, left = self._simplify(test.left)
        right_known, right = self._simplify(test.right)
        if decisive in (left_known, right_known):
            return decisive, test
        if left_known is None and right_known is None:
            return None, test.with_changes(left=left, right=right)
        if left_known is None:
            return None, left
        return right_known, right

    def _compare(self, test: cst.Comparison) -> bool:
        value = self._facts[test.left.attr.value]  # type: ignore[attr-defined]
        target = test.comparisons[0]
        literal = ast.literal_eval(cst.Module([]).code_for_node(target.comparator))
        match target.operator:
            case cst.Equal():
                return bool(value == literal)
            case cst.NotEqual():
                return bool(value != literal)
            case cst.In():
                return value in literal
            case cst.NotIn():
                return value not in literal
        raise FoldError(f"{self._filename}: {cst.Module([]).code_for_node(test)}: only ==, != and in may test S")


_PASS = cst.SimpleStatementLine([cst.Pass()])


def _splice(body: cst.BaseSuite, leading_lines: Sequence[cst.EmptyLine]) -> list[Statement]:
    """The statements of a chosen branch; a comment above the `if` moves to the first of them."""
    statements: list[Statement]
    if isinstance(body, cst.SimpleStatementSuite):
        statements = [cst.SimpleStatementLine(body.body)]
    else:
        statements = [s for s in body.body if isinstance(s, Statement)]
    first = statements[0]
    own = getattr(first, "leading_lines", ())
    return [first.with_changes(leading_lines=[*leading_lines, *own]), *statements[1:]]


def _is_s(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value == "S"


def _is_fact(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and _is_s(node.value)


def _refuse_leftovers(module: cst.Module, filename: str) -> None:
    """Anything of `S` that is still there was not a branch."""
    for name in ast.walk(ast.parse(module.code)):
        if isinstance(name, ast.Name) and name.id == "S":
            raise FoldError(
                f"{filename}:{name.lineno} (after folding): `S` may only decide an `if` or a conditional expression; "
                "pass values through config.py instead"
            )
