"""What the documentation says about figures is what the code prints."""

from __future__ import annotations

from pathlib import Path

from metainfer.bench.goals import TAILS
from metainfer.bench.metrics import FORMULAS
from metainfer.spec.models import Goals

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_the_page_has_every_formula_as_it_is_printed() -> None:
    for name, formula in FORMULAS.items():
        assert f"| {name} | {formula} |" in PAGE


def test_the_page_has_every_goal_of_a_spec() -> None:
    assert TAILS.keys() <= Goals.model_fields.keys()
    for goal in Goals.model_fields:
        assert f"`{goal}`" in PAGE
