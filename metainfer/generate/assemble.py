"""Joins exemplars into the modules of one engine: folds them, points their imports at each other, formats them."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from metainfer.errors import InputError
from metainfer.generate.blueprint import UNIT_MODULES, ModuleSlot
from metainfer.generate.folding import FactValue, fold, parse

ENGINE_LINE_LENGTH = 120

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


class AssemblyError(InputError):
    """Exemplars do not fit together; the message names both sides."""


@dataclass(frozen=True)
class UnitSource:
    """One Python file that makes one or more units: an exemplar, or what an agent or a person wrote instead."""

    path: str
    """Where it stands in the knowledge base, for messages and provenance."""
    text: str
    units: tuple[str, ...]


def assemble_module(slot: ModuleSlot, sources: Sequence[UnitSource], facts: Mapping[str, FactValue] | None) -> str:
    """Return the text of `slot`'s module, unformatted. With `facts` None the branches on `S` stay (for tests)."""
    docstrings: list[str] = []
    imports: list[_Statement] = []
    body: list[_Statement] = []
    owners: dict[str, str] = {}
    for source in sources:
        text = source.text if facts is None else fold(source.text, facts, source.path)
        module = parse(text, source.path)
        _check_definitions(module, source, owners)
        module = module.visit(_ImportRewriter(slot, source.path, folded=facts is not None))
        docstring, own_imports, own_body = _split(module)
        docstrings += [docstring] if docstring else []
        imports += own_imports
        body += own_body
    docstring = docstrings[0] if len(sources) == 1 and docstrings else f'"""{slot.docstring}"""'
    header = cst.parse_module(f"{docstring}\n\nfrom __future__ import annotations\n").body
    return cst.Module(body=[*header, *imports, *body]).code


def _check_definitions(module: cst.Module, source: UnitSource, owners: dict[str, str]) -> None:
    """Each exemplar defines its units, no other public name, and nothing that another file of the module defines."""
    tree = ast.parse(module.code)
    defined = [node.name for node in tree.body if isinstance(node, _Definition)]
    if missing := [unit for unit in source.units if unit not in defined]:
        raise AssemblyError(f"{source.path}: does not define {', '.join(missing)}")
    for node in tree.body:
        for name in dict.fromkeys(_bound(node)):
            public = not name.startswith("_") and not name.isupper()
            if public and name not in source.units and name in defined:
                raise AssemblyError(f"{source.path}:{node.lineno}: {name} is public but not one of its units")
            again = isinstance(node, ast.AugAssign | ast.For | ast.With) and owners.get(name) == source.path
            if name in owners and not again:
                raise AssemblyError(f"{source.path}:{node.lineno}: {name} is defined in {owners[name]} too")
            owners[name] = source.path


def _bound(node: ast.AST) -> Iterator[str]:
    """What a statement at the top of a module binds, imports aside: they are joined, not repeated."""
    if isinstance(node, _Definition):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif not isinstance(node, ast.Lambda | ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _split(module: cst.Module) -> tuple[str, list[_Statement], list[_Statement]]:
    """Docstring, top-level imports, and the rest, in order."""
    statements = list(module.body)
    docstring = ""
    if module.get_docstring() is not None:
        docstring = module.code_for_node(statements.pop(0)).strip()
    imports = [s for s in statements if _is_import(s)]
    return docstring, imports, [s for s in statements if not _is_import(s)]


def _is_import(statement: _Statement) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Import | cst.ImportFrom)


class _ImportRewriter(cst.CSTTransformer):
    """Points `from .units import X` at the module that holds X, and drops what the module itself provides."""

    def __init__(self, slot: ModuleSlot, path: str, *, folded: bool) -> None:
        super().__init__()
        self._slot = slot
        self._path = path
        self._folded = folded

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        statement = updated_node.body[0]
        if not isinstance(statement, cst.ImportFrom):
            return updated_node
        origin = "." * len(statement.relative) + (_dotted(statement.module) if statement.module else "")
        if origin == "__future__" or (origin == ".facts" and self._folded):
            return cst.RemoveFromParent()
        if origin != ".units":
            self._refuse_direct(origin)
            return updated_node
        lines = self._by_module(statement)
        if not lines:
            return cst.RemoveFromParent()
        return cst.FlattenSentinel([cst.parse_statement(line) for line in lines])

    def _by_module(self, statement: cst.ImportFrom) -> list[str]:
        if isinstance(statement.names, cst.ImportStar):
            raise AssemblyError(f"{self._path}: `from .units import *` hides what the unit needs; name the units")
        lines = []
        for alias in statement.names:
            unit = alias.evaluated_name
            module = UNIT_MODULES.get(unit)
            if module is None:
                raise AssemblyError(f"{self._path}: no module of the blueprint holds a unit named {unit}")
            if module != self._slot.name:
                renamed = f" as {alias.evaluated_alias}" if alias.evaluated_alias else ""
                lines.append(f"from .{module} import {unit}{renamed}")
        return lines

    def _refuse_direct(self, origin: str) -> None:
        if origin.startswith(".") and origin not in (".", ".config", ".facts"):
            raise AssemblyError(
                f"{self._path}: import units by `from .units import …`, not from {origin}; the blueprint places them"
            )


def _dotted(node: cst.BaseExpression) -> str:
    return cst.Module([]).code_for_node(node)


def check_import_order(modules: Mapping[str, str], order: Sequence[str]) -> None:
    """Refuse a module that imports from one below it, except inside a function."""
    for name, text in modules.items():
        for node in ast.parse(text).body:
            if not isinstance(node, ast.ImportFrom) or node.level != 1 or node.module not in order:
                continue
            if order.index(node.module) >= order.index(name):
                raise AssemblyError(f"{name}.py imports from {node.module}.py, which comes after it")


def used_config_names(modules: Iterable[str]) -> set[str]:
    """The constants of `config.py` that the given modules read."""
    names: set[str] = set()
    for text in modules:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == "config" and node.level == 1:
                names.update(alias.name for alias in node.names)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "config":
                names.add(node.attr)
    return names


def used_macro_names(sources: Iterable[str], names: Iterable[str]) -> set[str]:
    """Those of `names` that the given C++ texts mention."""
    words = {word for text in sources for word in re.findall(r"\b[A-Z][A-Z0-9_]+\b", text)}
    return words & set(names)


def undefined_names(text: str) -> list[str]:
    """Names that a file uses and neither defines nor imports, though another file of its module may: `line: name`."""
    from ruff.__main__ import find_ruff_bin

    command = [find_ruff_bin(), "check", "--isolated", "--no-cache", "--quiet", "--target-version=py311"]
    command += ["--select=F821", "--output-format=json", "-"]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1):
        raise AssemblyError(f"ruff cannot read the file: {result.stderr.strip()[:300]}")
    return [f"line {item['location']['row']}: {item['message']}" for item in json.loads(result.stdout)]


def format_python(files: Mapping[str, str]) -> dict[str, str]:
    """Remove unused imports, sort the rest, put the plain into its newer form, and format.

    The same text always gives the same bytes. What is mended here nobody needs to hear of as a finding.
    """
    from ruff.__main__ import find_ruff_bin

    ruff = find_ruff_bin()
    shared = ["--isolated", "--no-cache", "--quiet", "--target-version=py311", f"--line-length={ENGINE_LINE_LENGTH}"]
    with tempfile.TemporaryDirectory(prefix="metainfer-format-") as folder:
        root = Path(folder)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        for command in (
            [ruff, "check", "--fix", "--exit-zero", "--select=F401,I,UP,PIE,RET,C4,SIM,W", *shared],
            [ruff, "format", *shared],
        ):
            result = subprocess.run([*command, "."], cwd=root, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise AssemblyError(f"the assembled engine does not format:\n{result.stdout}{result.stderr}")
        return {path: (root / path).read_text(encoding="utf-8") for path in files}
