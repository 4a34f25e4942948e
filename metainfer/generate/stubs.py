"""Stands in for units that nobody has written yet, so that the rest of an engine can be assembled and judged.

A stub has the names and parameters of its contract and refuses every call. It is scaffold: no engine that is proposed
holds one.
"""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING

from metainfer.generate.assemble import AssemblyError
from metainfer.generate.blueprint import UNIT_MODULES

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract

_IMPORTS = {
    "Any": "from typing import Any",
    "AsyncIterator": "from collections.abc import AsyncIterator",
    "Awaitable": "from collections.abc import Awaitable",
    "Callable": "from collections.abc import Callable",
    "FastAPI": "from fastapi import FastAPI",
    "Generator": "from collections.abc import Generator",
    "Iterable": "from collections.abc import Iterable",
    "Iterator": "from collections.abc import Iterator",
    "Literal": "from typing import Literal",
    "Mapping": "from collections.abc import Mapping",
    "NamedTuple": "from typing import NamedTuple",
    "Path": "from pathlib import Path",
    "Protocol": "from typing import Protocol",
    "Self": "from typing import Self",
    "Tensor": "from torch import Tensor",
    "collections": "import collections.abc",
    "config": "from . import config",
    "ctypes": "import ctypes",
    "dataclass": "from dataclasses import dataclass",
    "deque": "from collections import deque",
    "enum": "import enum",
    "contextlib": "import contextlib",
    "field": "from dataclasses import field",
    "functools": "import functools",
    "math": "import math",
    "np": "import numpy as np",
    "torch": "import torch",
}
"""What signatures may mention without saying where it comes from."""


def stub_file(contract: Contract) -> str:
    """A file that defines the contract's units by their signatures. AssemblyError names what one leaves open."""
    refusing = ast.fix_missing_locations(_Refuse().visit(_signatures(contract)))
    lines = [
        ast.unparse(ast.Module([ast.Expr(ast.Constant(f"{contract.title}: not written yet."))], [])),
        "",
        *signature_imports(contract),
        "",
        ast.unparse(refusing),
        "",
    ]
    return "\n".join(lines)


def signature_imports(contract: Contract) -> list[str]:
    """The import lines that the signatures of a contract need: the standard library, torch, and the engine's own."""
    named = _foreign_names(contract)
    lines = {_IMPORTS[name] for name in named if name in _IMPORTS}
    lines |= {"import torch"} if "Tensor" in named else set()  # what computes with tensors needs both
    units = sorted(name for name in named if name in UNIT_MODULES)
    own = [f"from .units import {', '.join(units)}"] if units else []
    return [
        *sorted(lines, key=lambda line: (line.startswith("from ."), _is_library(line), line.startswith("from"), line)),
        *own,
    ]


def _is_library(line: str) -> bool:
    return line.split()[1].split(".")[0] in ("fastapi", "numpy", "torch")


def _signatures(contract: Contract) -> ast.Module:
    return ast.Module([node for unit in contract.units for node in ast.parse(unit.signature).body], [])


def _foreign_names(contract: Contract) -> set[str]:
    """What the signatures use and do not define."""
    nodes = list(ast.walk(_signatures(contract)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    own = {name.id for name in names if not isinstance(name.ctx, ast.Load)}
    own |= {node.name for node in nodes if isinstance(node, _Definition)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    foreign = used - own - {unit.name for unit in contract.units} - set(dir(builtins))
    if unknown := sorted(name for name in foreign if name not in UNIT_MODULES and name not in _IMPORTS):
        raise AssemblyError(f"{contract.id}: its signatures mention {', '.join(unknown)}: no unit and nothing known")
    return foreign


_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class _Refuse(ast.NodeTransformer):
    """Gives each function that has no body one that raises."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._refuse(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        self._refuse(node)
        return node

    def _refuse(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if all(map(_does_nothing, node.body)):
            node.body = ast.parse(f"raise NotImplementedError('{node.name} is not written yet')").body


def _does_nothing(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass)
