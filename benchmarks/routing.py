"""Seconds to route one deployment over a synthetic knowledge base of 10,000 contracts.

    python benchmarks/routing.py [CONTRACTS]

Predicates are all different: `first` includes parsing them, `again` does not. Whoever has loaded a base has parsed
them, so `again` is what a run sees. `load` reads the same base from files.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from metainfer.ckb.facts import Facts, fact_domains
from metainfer.ckb.models import Contract
from metainfer.ckb.predicates import parse_predicate
from metainfer.ckb.routing import coverage, route
from metainfer.ckb.store import KnowledgeBase


def predicates() -> Iterator[str]:
    """Different predicates of two to five comparisons; about one in eight holds for a given deployment."""
    terms = [
        f'{name} == "{v}"' if isinstance(v, str) else f"{name} == {v}"
        for name, vs in fact_domains().items()
        for v in vs
    ]
    for size in (3, 4, 5):
        for chosen in itertools.combinations(terms, size):
            yield " and ".join(chosen)


def contract_data(number: int, applies_when: str) -> dict[str, object]:
    unit = f"Unit{number}"
    return {
        "id": f"family/synthetic-{number}",
        "version": 1,
        "title": f"Synthetic contract {number}",
        "applies_when": applies_when,
        "units": [{"name": unit, "signature": f"def {unit}(x: Tensor) -> Tensor: ...\n", "shapes": {"x": "[n] fp32"}}],
        "semantics": "Returns x.\n",
        "invariants": ["x is not changed"],
        "requires": [],
        "exemplars": [{"path": "exemplars/x.py", "units": [unit], "applies_when": "true", "sources": []}],
        "provenance": {"author": "benchmark", "date": "2026-12-01"},
    }


def deployment() -> Facts:
    return Facts.model_validate({name: values[-1] for name, values in fact_domains().items()})


def write(root: Path, data: dict[str, object]) -> None:
    folder = root / str(data["id"])
    (folder / "exemplars").mkdir(parents=True)
    (folder / "contract.yaml").write_text(yaml.dump(data, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    (folder / "check.py").write_text("def check_x(c):\n    return []\n")
    (folder / "exemplars" / "x.py").write_text("x = 1\n")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    data = [contract_data(number, text) for number, text in zip(range(count), predicates(), strict=False)]
    contracts = {str(d["id"]): Contract(**d, digest="0" * 64, mutants=[]) for d in data}  # type: ignore[arg-type]
    base, facts = KnowledgeBase(Path("synthetic"), contracts), deployment()
    parse_predicate.cache_clear()
    seconds: dict[str, float] = {}
    for name in ("first", "again"):
        with measured(name, seconds):
            routing = route(base, facts)
            gaps = coverage(routing, [f"Unit{number}" for number in range(count)])
    with tempfile.TemporaryDirectory() as folder:
        for item in data:
            write(Path(folder), item)
        with measured("load", seconds):
            KnowledgeBase.load(Path(folder))
    result = {"contracts": len(contracts), "apply": len(routing.contracts), "gaps": len(gaps), "seconds": seconds}
    print(json.dumps(result))


@contextmanager
def measured(name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Note wall-clock seconds, and those of this process alone, which a busy machine does not stretch."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    seconds[name] = round(time.perf_counter() - wall, 3)
    seconds[f"{name}_cpu"] = round(time.process_time() - cpu, 3)


if __name__ == "__main__":
    main()
