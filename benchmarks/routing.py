"""Seconds to route one deployment over a synthetic knowledge base of 10,000 contracts.

    python benchmarks/routing.py [CONTRACTS]

Predicates are all different, so none is parsed twice: `first` includes parsing them, `again` does not. `load` reads the
same base from files, which is what a knowledge base of that size would cost once per run.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
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
    seconds = {}
    for name in ("first", "again"):
        start = time.perf_counter()
        routing = route(base, facts)
        gaps = coverage(routing, [f"Unit{number}" for number in range(count)])
        seconds[name] = round(time.perf_counter() - start, 3)
    with tempfile.TemporaryDirectory() as folder:
        for item in data:
            write(Path(folder), item)
        start = time.perf_counter()
        KnowledgeBase.load(Path(folder))
        seconds["load"] = round(time.perf_counter() - start, 3)
    print(
        json.dumps(
            {"contracts": len(contracts), "apply": len(routing.contracts), "gaps": len(gaps), "seconds": seconds}
        )
    )


if __name__ == "__main__":
    main()
