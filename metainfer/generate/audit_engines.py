"""Engines for the audit of the knowledge base: made once per deployment, then varied one exemplar at a time."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from metainfer.checkpoint.facts import ModelFacts
from metainfer.ckb.facts import Facts
from metainfer.ckb.routing import Routing, route
from metainfer.ckb.store import KnowledgeBase
from metainfer.generate.assemble import AssemblyError, UnitSource
from metainfer.generate.blueprint import MODULES, UNIT_MODULES
from metainfer.generate.scratch import assemble_scratch

PACKAGE = "scratch"


class ScratchEngines:
    """Fills `metainfer.ckb.mutants.EngineMaker`: tiny engines from one knowledge base."""

    def __init__(self, ckb_root: Path) -> None:
        self._root = ckb_root
        self._knowledge = KnowledgeBase.load(ckb_root)

    def make(self, facts: Facts, model: ModelFacts, out: Path, *, folded: bool) -> None:
        """Write the engine for `facts` and `model` to `out`. Raises what routing and assembly raise."""
        assemble_scratch(self._root, facts, model, out, folded=folded, name=PACKAGE)

    def replace(self, engine: Path, facts: Facts, file: str, text: str) -> bool:
        """Make an unfolded engine of `facts` again as if the knowledge base's `file` read `text`.

        False if the file takes no part in the deployment. The module with the file's units is made in the shortest
        way that runs, which is a hundred times faster than the one that reads well.
        """
        routing = self._route(facts)
        sources = {f"{c.id}/{s}" for c in routing.contracts for e in c.exemplars for s in e.sources}
        if file in sources:
            (engine / PACKAGE / "csrc" / Path(file).name).write_text(text, encoding="utf-8")
            return True
        for slot in MODULES:
            parts = _sources(self._root, routing, slot.units)
            if any(part.path == file for part in parts):
                module = _joined(slot.name, [UnitSource(file, text, p.units) if p.path == file else p for p in parts])
                (engine / PACKAGE / f"{slot.name}.py").write_text(module, encoding="utf-8")
                return True
        return False

    @functools.cache  # noqa: B019  the cache lives as long as this short-lived object
    def _route(self, facts: Facts) -> Routing:
        return route(self._knowledge, facts)


def _joined(module: str, sources: list[UnitSource]) -> str:
    """The exemplars of one module, one after the other, with their branches on `S`."""
    body: list[ast.stmt] = []
    for source in sources:
        try:
            tree = ast.parse(source.text)
        except SyntaxError as error:
            raise AssemblyError(f"{source.path}:{error.lineno}: {error.msg}") from error
        body += _UnitImports(module).visit(tree).body
    return "from __future__ import annotations\n" + ast.unparse(ast.Module(body, []))


class _UnitImports(ast.NodeTransformer):
    """Points `from .units import X` at the module that holds X."""

    def __init__(self, module: str) -> None:
        self._module = module

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt] | ast.stmt:
        if node.module == "__future__":
            return []
        if node.module != "units" or node.level != 1:
            return node
        found: list[ast.stmt] = [
            ast.ImportFrom(UNIT_MODULES[alias.name], [alias], 1)
            for alias in node.names
            if UNIT_MODULES[alias.name] != self._module
        ]
        return found or [ast.Pass()]


def _sources(root: Path, routing: Routing, units: tuple[str, ...]) -> tuple[UnitSource, ...]:
    """The exemplars of one module in the blueprint's order, each with the units it makes there."""
    placed: dict[str, tuple[str, ...]] = {}
    for unit in units:
        contract, exemplar = routing.source_of(unit)
        path = f"{contract.id}/{exemplar.path}"
        placed[path] = (*placed.get(path, ()), unit)
    return tuple(UnitSource(path, (root / path).read_text("utf-8"), names) for path, names in placed.items())
