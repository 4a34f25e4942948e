"""Engines for the audit of the knowledge base: made once per deployment, then varied one exemplar at a time."""

from __future__ import annotations

import functools
from pathlib import Path

from metainfer.checkpoint.facts import ModelFacts
from metainfer.ckb.facts import Facts
from metainfer.ckb.routing import Routing, route
from metainfer.ckb.store import KnowledgeBase
from metainfer.generate.assemble import UnitSource, assemble_module
from metainfer.generate.blueprint import MODULES, ModuleSlot
from metainfer.generate.scratch import assemble_scratch

PACKAGE = "scratch"


class ScratchEngines:
    """Fills `metainfer.ckb.mutants.EngineMaker`: tiny engines, folded or with their branches."""

    def __init__(self, ckb_root: Path, *, folded: bool = True) -> None:
        self._root = ckb_root
        self._folded = folded
        self._knowledge = KnowledgeBase.load(ckb_root)

    def make(self, facts: Facts, model: ModelFacts, out: Path) -> None:
        """Write the engine for `facts` and `model` to `out`. Raises what routing and assembly raise."""
        assemble_scratch(self._root, facts, model, out, folded=self._folded, name=PACKAGE)

    def replace(self, engine: Path, facts: Facts, file: str, text: str) -> bool:
        """Make an engine of `facts` again as if the knowledge base's `file` read `text`; whether that changed it.

        Only the module that holds the file's units is made, and not formatted. A file that takes no part in the
        deployment changes nothing.
        """
        routing = self._route(facts)
        sources = {f"{c.id}/{s}" for c in routing.contracts for e in c.exemplars for s in e.sources}
        if file in sources:
            return _write_if_new(engine / PACKAGE / "csrc" / Path(file).name, text)
        for slot in MODULES:
            before = _sources(self._root, routing, slot.units)
            after = tuple(UnitSource(s.path, text, s.units) if s.path == file else s for s in before)
            if after == before:
                continue
            module = self._module(slot, after, facts)
            if module != self._module(slot, before, facts):
                (engine / PACKAGE / f"{slot.name}.py").write_text(module, encoding="utf-8")
                return True
        return False

    # The caches live as long as this short-lived object.
    @functools.cache  # noqa: B019
    def _route(self, facts: Facts) -> Routing:
        return route(self._knowledge, facts)

    @functools.cache  # noqa: B019
    def _module(self, slot: ModuleSlot, sources: tuple[UnitSource, ...], facts: Facts) -> str:
        return assemble_module(slot, sources, facts.model_dump(mode="json") if self._folded else None)


def _sources(root: Path, routing: Routing, units: tuple[str, ...]) -> tuple[UnitSource, ...]:
    """The exemplars of one module in the blueprint's order, each with the units it makes there."""
    placed: dict[str, tuple[str, ...]] = {}
    for unit in units:
        contract, exemplar = routing.source_of(unit)
        path = f"{contract.id}/{exemplar.path}"
        placed[path] = (*placed.get(path, ()), unit)
    return tuple(UnitSource(path, (root / path).read_text("utf-8"), names) for path, names in placed.items())


def _write_if_new(path: Path, text: str) -> bool:
    if not path.exists() or path.read_text("utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True
