"""How several files go into one submission."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.commands.run import _more_files
from metainfer.errors import InputError


def test_each_names_a_unit_and_a_file() -> None:
    assert _more_files(["Linear=a/b.py", "sample=x=y.py"]) == {"Linear": Path("a/b.py"), "sample": Path("x=y.py")}


@pytest.mark.parametrize("given", [["Linear"], ["=x"], ["Linear="], ["A=x", "A=y"]])
def test_anything_else_is_refused_with_the_form(given: list[str]) -> None:
    with pytest.raises(InputError, match="write UNIT=FILE, each unit once"):
        _more_files(given)
