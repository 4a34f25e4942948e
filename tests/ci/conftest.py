"""One scene for all tests of a session; each test that changes something works on its own copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ci.repositories import Scene, copy_scene, green_report, make_scene


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture
def scene(original: Scene, tmp_path: Path) -> Scene:
    return copy_scene(original, tmp_path)


@pytest.fixture
def report(scene: Scene, tmp_path: Path) -> Path:
    return green_report(scene, tmp_path / "report")
