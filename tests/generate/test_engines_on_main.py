"""What lies in engines/ was made by the generator, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.generate.manifest import altered_files, read_manifest
from metainfer.generate.regenerate import differences, regenerate

ROOT = Path(__file__).parents[2]
ENGINES = sorted(path.parent for path in (ROOT / "engines").glob("*/manifest.json"))
MAX_CODE_LINES = 1500


def test_the_demo_engine_is_there() -> None:
    assert "qwen2.5-coder-0.5b-cpu" in [engine.name for engine in ENGINES]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda path: path.name)
def test_regenerating_it_gives_the_same_bytes(engine: Path) -> None:
    assert differences(engine, regenerate(engine, ROOT / "ckb")) == []


@pytest.mark.parametrize("engine", ENGINES, ids=lambda path: path.name)
def test_its_files_are_those_of_its_manifest(engine: Path) -> None:
    assert altered_files(engine, read_manifest(engine)) == []


@pytest.mark.parametrize("engine", ENGINES, ids=lambda path: path.name)
def test_it_is_small(engine: Path) -> None:
    assert read_manifest(engine).code_lines <= MAX_CODE_LINES


@pytest.mark.parametrize("engine", ENGINES, ids=lambda path: path.name)
def test_an_edited_line_is_noticed(engine: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / engine.name
    shutil.copytree(engine, copy)
    target = copy / read_manifest(engine).package / "model.py"
    target.write_text(target.read_text() + "# a hand edit\n")
    package = read_manifest(engine).package
    assert differences(copy, regenerate(copy, ROOT / "ckb")) == [
        f"{package}/model.py: differs from what the generator makes"
    ]
    assert altered_files(copy, read_manifest(copy)) == [f"{package}/model.py: changed after generation"]
