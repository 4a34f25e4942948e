"""From a line of an engine to where it comes from and what supports it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from metainfer.errors import InputError
from metainfer.generate.manifest import EVIDENCE_NAME, Manifest, UnitRecord, read_manifest


def explain_line(file: Path, line: int, ckb_root: Path) -> str:
    """Unit, contract, origin and evidence of one line. InputError if the file is not part of an engine."""
    engine_dir = _engine_of(file)
    manifest = read_manifest(engine_dir)
    path = file.resolve().relative_to(engine_dir.resolve()).as_posix()
    if path not in manifest.files:
        raise InputError(f"{file}: not a file that the generator wrote")
    text = file.read_text(encoding="utf-8").splitlines()
    if not 1 <= line <= len(text):
        raise InputError(f"{file}: has {len(text)} lines; there is no line {line}")
    lines = [f"{path}:{line}: {text[line - 1].strip()}"]
    lines += _source(manifest, file, path, line, ckb_root)
    return "\n".join([*lines, *_evidence(engine_dir)])


def _engine_of(file: Path) -> Path:
    for folder in file.resolve().parents:
        if (folder / "manifest.json").is_file():
            return folder
    raise InputError(f"{file}: does not lie in an engine's folder (no manifest.json above it)")


def _source(manifest: Manifest, file: Path, path: str, line: int, ckb_root: Path) -> list[str]:
    module = Path(path).stem
    if path.endswith(".cpp"):
        return _kernel(manifest, file, ckb_root)
    if module in ("config", "__init__") or not path.startswith(f"{manifest.package}/"):
        return [f"written by the generator (version {manifest.generator.version}) from {manifest.spec_path}"]
    unit = _unit_at(manifest, file, module, line)
    if unit is None:
        names = ", ".join(unit.name for unit in manifest.units if unit.module == module)
        return [f"imports and constants of the module that holds {names}"]
    return [
        f"unit {unit.name}, made by the {unit.backend} from {unit.origin}",
        f"contract {unit.contract} version {unit.contract_version}: {_title(ckb_root, unit.contract)}",
    ]


def _unit_at(manifest: Manifest, file: Path, module: str, line: int) -> UnitRecord | None:
    """The unit whose definition holds the line, or the one that a private helper above or below it serves."""
    units = {unit.name: unit for unit in manifest.units if unit.module == module}
    body = ast.parse(file.read_text(encoding="utf-8")).body
    definitions = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
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


def _kernel(manifest: Manifest, file: Path, ckb_root: Path) -> list[str]:
    """A C++ file is copied whole, so the exemplar folder that holds the same bytes is its origin."""
    for contract in manifest.contracts:
        for source in (ckb_root / contract.id / "exemplars").glob(file.name):
            if source.read_bytes() == file.read_bytes():
                return [
                    f"copied whole from ckb/{contract.id}/exemplars/{file.name}, contract version {contract.version}"
                ]
    return ["a kernel whose exemplar has changed since; see manifest.json for the contracts"]


def _title(ckb_root: Path, contract_id: str) -> str:
    from metainfer.ckb.store import KnowledgeBase

    contract = KnowledgeBase.load(ckb_root).contracts.get(contract_id)
    return contract.title if contract else "no longer in the knowledge base"


def _evidence(engine_dir: Path) -> list[str]:
    path = engine_dir / EVIDENCE_NAME
    if not path.is_file():
        return ["no evidence: nothing has judged this engine yet"]
    evidence = json.loads(path.read_bytes())
    return [f"evidence of {evidence['created']}:"] + [
        f"  {report['gate']}: {report['verdict']}; repeat it with {report['reproduce']}" for report in evidence["gates"]
    ]
