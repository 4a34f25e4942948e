"""What the dashboard is made from: whatever lies in specs/, it is told of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.review.dashboard.gather import gather
from tests.github.stub import Stub
from tests.review.place import Place
from tests.review.repository import knowledge


@pytest.mark.parametrize("broken", [b"since: 2026-13-45\n", b"n: " + b"9" * 5000, b"\xff", b"a: [", b"[" * 5000])
def test_a_spec_that_cannot_be_read_is_an_engine_without_facts(stub: Stub, tmp_path: Path, broken: bytes) -> None:
    files = {"specs/good.yaml": b"generation: {budget_usd: 2}\n", "specs/odd.yaml": broken}
    place = Place(stub, f"octo/gather-{tmp_path.name}", tmp_path, knowledge() | files)
    engines = {engine.name: engine.budget_usd for engine in gather(place.forge(stub.token("octo"))).engines}
    assert engines == {"good": 2.0, "odd": 0.0}
