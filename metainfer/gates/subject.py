"""The engine under judgement: only what its manifest lists, in a clean copy that nobody else writes."""

from __future__ import annotations

import ast
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metainfer.errors import InputError
from metainfer.generate.manifest import MANIFEST_NAME, Manifest, read_manifest


@dataclass(frozen=True)
class Subject:
    """One engine's folder, its manifest, and the constants of its `config.py`."""

    folder: Path
    manifest: Manifest
    config: Mapping[str, Any]

    @property
    def package(self) -> str:
        return self.manifest.package

    @property
    def package_dir(self) -> Path:
        return self.folder / self.package

    def sources(self, *suffixes: str) -> list[Path]:
        """Files of the package with these suffixes, in order."""
        return sorted(path for path in self.package_dir.rglob("*") if path.suffix in suffixes and path.is_file())

    def shown(self, path: Path) -> str:
        """`path` as a reader of the engine names it."""
        return path.relative_to(self.folder).as_posix()


@contextmanager
def clean_subject(engine_dir: Path) -> Iterator[Subject]:
    """Copy what the manifest lists, and nothing else: no cached bytecode, no links, no stray files.

    Raises InputError if there is no manifest, or a listed file is not a regular file inside the folder.
    """
    manifest = read_manifest(engine_dir)
    with tempfile.TemporaryDirectory(prefix="metainfer-engine-") as folder:
        target = Path(folder) / manifest.engine
        for name in (MANIFEST_NAME, *manifest.files):
            source = engine_dir / name
            inside = source.resolve().is_relative_to(engine_dir.resolve())
            if not inside or source.is_symlink() or not source.is_file():
                raise InputError(f"{name}: the manifest lists it, but it is not a regular file in the engine's folder")
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / name)
        Path(folder).chmod(0o755)
        yield Subject(target, manifest, read_constants(target / manifest.package / "config.py"))


def read_constants(path: Path) -> dict[str, Any]:
    """The constants of a `config.py`, read without running it. Raises InputError if it is anything but constants."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path.name}: cannot be read: {error}") from error
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            try:
                constants[node.target.id] = ast.literal_eval(node.value)
            except ValueError as error:
                raise InputError(f"{path.name}:{node.lineno}: {node.target.id} is not a plain value") from error
        elif not isinstance(node, ast.ImportFrom) and not _is_text(node):
            raise InputError(f"{path.name}:{node.lineno}: only constants belong here")
    return constants


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
