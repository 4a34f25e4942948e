"""From a line of an engine to where it comes from and what supports it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from metainfer.errors import InputError
from metainfer.files import read_regular
from metainfer.generate.manifest import EVIDENCE_NAME, Manifest, UnitRecord, read_manifest


def explain_line(file: Path, line: int, ckb_root: Path) -> str:
    """Unit, contract, origin and evidence of one line. InputError if the file is not part of an engine."""
    engine_dir = _engine_of(file)
    manifest = read_manifest(engine_dir)
    path = file.resolve().relative_to(engine_dir.resolve()).as_posix()
    if path not in manifest.files:
        raise InputError(f"{file}: not a file that the generator wrote")
    text = _text(file)
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        raise InputError(f"{file}: has {len(lines)} lines; there is no line {line}")
    told = [f"{path}:{line}: {lines[line - 1].strip()}"]
    told += _source(manifest, file, text, path, line, ckb_root)
    return "\n".join([*told, *_evidence(engine_dir)])


def _engine_of(file: Path) -> Path:
    try:
        folders = file.resolve().parents
    except (OSError, RuntimeError) as error:  # the one or the other for a link to itself, by version of Python
        raise InputError(f"{file}: a link that leads nowhere") from error
    for folder in folders:
        if (folder / "manifest.json").is_file():
            return folder
    raise InputError(
        f"{file}: does not lie in an engine's folder (no manifest.json above it); "
        "`metainfer pr checkout N` writes the engine of a pull request and prints where"
    )


def _text(file: Path) -> str:
    try:
        return read_regular(file).decode()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file}: not UTF-8 at byte {error.start}; `metainfer verify` says what else differs"
        ) from error


def _source(manifest: Manifest, file: Path, text: str, path: str, line: int, ckb_root: Path) -> list[str]:
    module = Path(path).stem
    if path.endswith(".cpp"):
        return _kernel(manifest, file.name, text, ckb_root)
    if module in ("config", "__init__") or not path.startswith(f"{manifest.package}/"):
        return [f"written by the generator (version {manifest.generator.version}) from {manifest.spec_path}"]
    unit = _unit_at(manifest, file, text, module, line)
    if unit is None:
        names = ", ".join(unit.name for unit in manifest.units if unit.module == module)
        return [f"imports and constants of the module that holds {names}"]
    return [
        f"unit {unit.name}, made by the {unit.backend} from {unit.origin}",
        f"contract {unit.contract} version {unit.contract_version}: {_title(ckb_root, unit.contract)}",
    ]


def _unit_at(manifest: Manifest, file: Path, text: str, module: str, line: int) -> UnitRecord | None:
    """The unit whose definition holds the line, or the one that a private helper above or below it serves."""
    units = {unit.name: unit for unit in manifest.units if unit.module == module}
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{file}: not Python ({error}); `metainfer verify` says what else differs") from error
    definitions = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    origins = {unit.origin for unit in units.values()}
    for node in definitions:
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        if first <= line <= (node.end_lineno or node.lineno):
            if node.name in units:
                return units[node.name]
            # A helper comes from the file of the unit before it; where one file made the module, from that.
            before = [other.name for other in definitions if other.lineno <= node.lineno and other.name in units]
            after = [other.name for other in definitions if other.lineno > node.lineno and other.name in units]
            chosen = (before[-1:] or after[:1]) if len(origins) > 1 else (after[:1] or before[-1:])
            return units[chosen[0]] if chosen else None
    return None


def _kernel(manifest: Manifest, name: str, text: str, ckb_root: Path) -> list[str]:
    """A C++ file is copied whole, so the exemplar folder that holds the same bytes is its origin."""
    for contract in manifest.contracts:
        for source in (ckb_root / contract.id / "exemplars").glob(name):
            if source.read_bytes() == text.encode():
                return [f"copied whole from ckb/{contract.id}/exemplars/{name}, contract version {contract.version}"]
    return ["a kernel whose exemplar has changed since; see manifest.json for the contracts"]


def _title(ckb_root: Path, contract_id: str) -> str:
    from metainfer.ckb.store import KnowledgeBase

    contract = KnowledgeBase.load(ckb_root).contracts.get(contract_id)
    return contract.title if contract else "no longer in the knowledge base"


def _evidence(engine_dir: Path) -> list[str]:
    path = engine_dir / EVIDENCE_NAME
    if not path.is_file():
        return ["no evidence: nothing has judged this engine yet"]
    try:
        evidence = json.loads(read_regular(path))
        return [f"evidence of {evidence['created']}:"] + [
            f"  {report['gate']}: {report['verdict']}; repeat it with {report['reproduce']}"
            for report in evidence["gates"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not a record of gates: {error!r}") from error
