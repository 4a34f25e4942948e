"""What `metainfer pr` prints: what people wrote as they wrote it, and what stands in the way of a merge."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from metainfer.cli import app
from metainfer.forge.local import LocalForge
from tests.forge.engines import ALICE, KNOWLEDGE, request


@pytest.mark.parametrize("text", ["[/bogus]", "use list[int] or [bold]x, see a[0] and dict[str, int]"])
def test_brackets_in_a_comment_are_no_markup(forge: LocalForge, tmp_path: Path, text: str) -> None:
    number = forge.publish(request(forge)).number
    assert number is not None
    forge.comment(number, ALICE, text)
    result = CliRunner().invoke(app, ["pr", "show", str(number), "--forge", str(tmp_path / "forge.git")])
    assert result.exit_code == 0, result.output
    assert text in result.output


def test_an_approval_says_what_is_still_in_the_way_or_what_comes_next(forge: LocalForge, tmp_path: Path) -> None:
    arguments = ["--forge", str(tmp_path / "forge.git"), "--as"]
    number = str(forge.publish(request(forge, proposals=KNOWLEDGE)).number)
    stranger = CliRunner().invoke(app, ["pr", "approve", number, *arguments, "Somebody <somebody@example.org>"])
    assert stranger.exit_code == 0, stranger.output
    assert "in the way: ckb/" in stranger.output
    assert "next:" not in stranger.output
    owner = CliRunner().invoke(app, ["pr", "approve", number, *arguments, f"{ALICE.name} <{ALICE.email}>"])
    assert owner.output.endswith(f"next: metainfer pr merge {number}\n")
    assert "in the way" not in owner.output
