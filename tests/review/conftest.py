"""One repository for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.review.repository import Heads


@pytest.fixture
def heads(tmp_path: Path) -> Heads:
    return Heads(tmp_path / "repo.git")
