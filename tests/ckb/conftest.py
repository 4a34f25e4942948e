"""A small knowledge base to break: one contract with a unit, a check, mutants, and one that requires it."""

from __future__ import annotations

from pathlib import Path

import pytest

CONTRACT = """\
# Kept for those who read it.
id: general/counter
version: 3
title: Counts tokens
applies_when: "true"
units:
  - name: count
    signature: |
      def count(tokens: list[int]) -> int: ...
    shapes: {returns: "a number"}
semantics: |
  The number of tokens. An empty list has none.
invariants:
  - "Never negative."
  - "Order does not matter."
failure_modes:
  - id: off-by-one
    symptom: One too many.
    trigger: Counting from one.
    caught_by: check_counts
    fix: Count from zero.
    source: Everywhere.
requires: []
conflicts: []
exemplars:
  # The only way to count.
  - {path: exemplars/plain.py, units: [count]}

provenance:
  author: metainfer maintainers
  date: "2026-12-01"
"""
CHECK = '''\
"""Checks of counting."""

from metainfer.ckb.checks import Candidate, Finding

TOLERANCE = 1e-6


def check_counts(c: Candidate):
    for size in (0, 1, 5):
        error = abs(c.unit("count")(list(range(size))) - size)
        if error > TOLERANCE:
            yield Finding("check_counts", "counts wrong", {"error": error})
'''
MUTANTS = """\
- {name: one-more, file: exemplars/plain.py, replace: "len(tokens)", with: "len(tokens) + 1", why: Off by one.}
- {name: one-less, file: exemplars/plain.py, replace: "len(tokens)", with: "len(tokens) - 1", why: Off by one.}
- {name: distinct, file: exemplars/plain.py, replace: "len(tokens)", with: "len({*tokens, 0})", why: Counts kinds.}
"""
EXEMPLAR = '''\
"""Counting."""


def count(tokens: list[int]) -> int:
    return len(tokens)
'''
USER = """\
id: family/summary
version: 1
title: Needs counting
applies_when: 'architecture == "qwen3"'
semantics: Says how many there are.
requires: [general/counter]
provenance: {author: metainfer maintainers, date: "2026-12-01"}
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The root of the small knowledge base."""
    root = tmp_path / "ckb"
    files = {
        "general/counter/contract.yaml": CONTRACT,
        "general/counter/check.py": CHECK,
        "general/counter/mutants.yaml": MUTANTS,
        "general/counter/exemplars/plain.py": EXEMPLAR,
        "family/summary/contract.yaml": USER,
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root
