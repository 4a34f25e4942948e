"""`metainfer pr show` prints what people wrote, as they wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from metainfer.cli import app
from metainfer.forge.local import LocalForge
from tests.forge.engines import ALICE, request


@pytest.mark.parametrize("text", ["[/bogus]", "use list[int] or [bold]x, see a[0] and dict[str, int]"])
def test_brackets_in_a_comment_are_no_markup(forge: LocalForge, tmp_path: Path, text: str) -> None:
    number = forge.publish(request(forge)).number
    assert number is not None
    forge.comment(number, ALICE, text)
    result = CliRunner().invoke(app, ["pr", "show", str(number), "--forge", str(tmp_path / "forge.git")])
    assert result.exit_code == 0, result.output
    assert text in result.output
