"""An engine's folder against what its manifest makes: everything in it counts, whatever kind of thing it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metainfer.errors import InputError
from metainfer.generate.manifest import altered_files, read_manifest
from metainfer.generate.regenerate import differences, regenerate
from metainfer.generate.specializer import GeneratedEngine

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the demo engine."""
    origin = ROOT / "engines/qwen2.5-coder-0.5b-cpu"
    return Path(shutil.copytree(origin, tmp_path / "engine", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def engine(folder: Path) -> GeneratedEngine:
    """What the generator makes, as far as these tests are concerned: the copy before they touch it."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files.pop("evidence.json")
    return GeneratedEngine(read_manifest(folder), files)


def put(kind: str, path: Path) -> None:
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path.name)
        case "dangling link":
            path.symlink_to("nowhere")
        case "link to a file":
            path.symlink_to("/etc/hostname")
        case "link to a folder":
            path.symlink_to("/etc")


@pytest.mark.parametrize("kind", ["FIFO", "loop", "dangling link", "link to a file", "link to a folder"])
@pytest.mark.parametrize("name", ["odd", "README.md", "evidence.json", "tests/__pycache__"])
def test_what_is_no_regular_file_is_a_difference(name: str, kind: str, folder: Path, engine: GeneratedEngine) -> None:
    assert differences(folder, engine) == altered_files(folder, engine.manifest) == []
    (folder / name).unlink(missing_ok=True)
    put(kind, folder / name)
    assert differences(folder, engine) == [f"{name}: not a regular file"]
    assert altered_files(folder, engine.manifest) == [f"{name}: not a regular file"]


def test_evidence_is_left_out_where_it_belongs_and_nowhere_else(folder: Path, engine: GeneratedEngine) -> None:
    (folder / "tests/evidence.json").write_text("{}")
    assert differences(folder, engine) == ["tests/evidence.json: the generator does not make it"]


def test_compiled_python_is_no_difference(folder: Path, engine: GeneratedEngine) -> None:
    (folder / "tests/__pycache__").mkdir()
    (folder / "tests/__pycache__/x.pyc").write_bytes(b"x")
    assert differences(folder, engine) == altered_files(folder, engine.manifest) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["spec"]["target"].update(platform="z80"), r"spec\.target\.platform: Input should be"),
        (lambda m: m["spec"].update(name="No Name"), r"spec\.name: use at most 64"),
        (lambda m: m["model"]["facts"].update(hidden_size="wide"), r"model\.facts\.hidden_size: Input should be"),
        (lambda m: m.pop("units"), "units: Field required"),
    ],
)
def test_a_damaged_manifest_is_named_with_the_key(
    change: Callable[[dict[str, Any]], object], message: str, folder: Path
) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=f"^{path}: {message}") as caught:
        regenerate(folder, ROOT / "ckb")
    assert len(str(caught.value).splitlines()) == 1
