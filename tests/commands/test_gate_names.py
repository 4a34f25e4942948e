"""The gates that `metainfer gate` runs are those that its help and the documentation name."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from metainfer.cli import app
from metainfer.gates.runner import GATES

DOCS = Path(__file__).parents[2] / "docs"


def listed(text: str) -> tuple[str, ...]:
    """The names in `a, b, c or d`, in the order given."""
    found = re.search(r"\w+(?:, \w+)+ or \w+", " ".join(text.split()))
    assert found is not None
    return tuple(re.split(r", | or ", found.group()))


def test_the_documentation_names_every_gate_of_the_command() -> None:
    row = next(line for line in (DOCS / "cli.md").read_text().splitlines() if line.startswith("| `metainfer gate "))
    assert listed(row.partition("`NAME` is")[2]) == GATES
    # Performance is judged in a run, from its benchmark; it is no gate of the command.
    table = re.findall(r"^\| (\w+) \|", (DOCS / "gates.md").read_text(), re.MULTILINE)
    assert table == ["gate", *GATES, "performance"]


def test_the_help_names_every_gate() -> None:
    shown = re.sub(r"[│╭╮╰╯─]", " ", CliRunner().invoke(app, ["gate", "--help"]).output)
    assert listed(shown) == GATES
