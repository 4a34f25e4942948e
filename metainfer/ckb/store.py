"""The knowledge base on disk, read whole and checked whole: every problem is reported at once, with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from metainfer.ckb.models import LAYERS, Contract, ContractFile, MutantsFile
from metainfer.errors import InputError
from metainfer.files import canonical_json, sha256_bytes
from metainfer.spec.document import Document, DocumentError

CONTRACT_NAME, CHECK_NAME, MUTANTS_NAME = "contract.yaml", "check.py", "mutants.yaml"


class KnowledgeError(InputError):
    """The knowledge base does not hold together; `problems` has a line for each reason."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


@dataclass(frozen=True)
class KnowledgeBase:
    """All contracts below one root, by id."""

    root: Path
    contracts: Mapping[str, Contract]

    @classmethod
    def load(cls, root: Path) -> KnowledgeBase:
        """Read `root` (a `ckb/` folder). Raises KnowledgeError with every problem found."""
        if not root.is_dir():
            raise KnowledgeError([f"{root}: no such folder; a knowledge base is a folder of layers"])
        problems: list[str] = []
        contracts: dict[str, Contract] = {}
        for folder in _contract_folders(root, problems):
            try:
                contract = _load_contract(root, folder)
            except DocumentError as error:
                problems += error.problems
            else:
                contracts[contract.id] = contract
        problems += _reference_problems(root, contracts)
        if problems:
            raise KnowledgeError(problems)
        return cls(root, contracts)

    def folder(self, contract_id: str) -> Path:
        """Where a contract's files lie."""
        return self.root / contract_id

    def check_file(self, contract_id: str) -> Path:
        """A contract's executable half."""
        return self.folder(contract_id) / CHECK_NAME


def _contract_folders(root: Path, problems: list[str]) -> Iterator[Path]:
    for layer in sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        if layer.name not in LAYERS:
            problems.append(f"{layer}: not a layer; layers are {', '.join(LAYERS)}")
            continue
        for folder in sorted(entry for entry in layer.iterdir() if entry.is_dir() and entry.name != "__pycache__"):
            if (folder / CONTRACT_NAME).is_file():
                yield folder
            else:
                problems.append(f"{folder}: has no {CONTRACT_NAME}")


def _load_contract(root: Path, folder: Path) -> Contract:
    document = Document.read(folder / CONTRACT_NAME)
    file = document.validate(ContractFile)
    problems = []
    expected = folder.relative_to(root).as_posix()
    if file.id != expected:
        problems.append(f"{document.where(['id'])}: id is {file.id}, but the folder is {expected}")
    for index, exemplar in enumerate(file.exemplars):
        for path in (exemplar.path, *exemplar.sources):
            if not (folder / path).is_file():
                problems.append(f"{document.where(['exemplars', index])}: {path}: no such file")
    if file.units and not (folder / CHECK_NAME).is_file():
        problems.append(f"{folder}: has units but no {CHECK_NAME}; a contract without a check proves nothing")
    if problems:
        raise DocumentError(problems)
    mutants = _load_mutants(folder)
    return Contract(**file.model_dump(), digest=_digest(folder), mutants=mutants.mutants)


def _load_mutants(folder: Path) -> MutantsFile:
    path = folder / MUTANTS_NAME
    if not path.is_file():
        return MutantsFile(mutants=[])
    document = Document.read(path)
    mutants = Document(document.path, {"mutants": document.data}, {}).validate(MutantsFile)
    for mutant in mutants.mutants:
        target = folder / mutant.file
        count = target.read_text("utf-8").count(mutant.replace) if target.is_file() else 0
        if count != 1:
            raise DocumentError([f"{path}: {mutant.name}: its text occurs {count} times in {mutant.file}, not once"])
    return mutants


def _digest(folder: Path) -> str:
    files = {
        path.relative_to(folder).as_posix(): sha256_bytes(path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return sha256_bytes(canonical_json(files))


def _reference_problems(root: Path, contracts: Mapping[str, Contract]) -> list[str]:
    problems = [
        f"{root / contract.id / CONTRACT_NAME}: {kind} {other}: no such contract"
        for contract in contracts.values()
        for kind, others in (("requires", contract.requires), ("conflicts with", contract.conflicts))
        for other in others
        if other not in contracts
    ]
    return problems + _cycle_problems(root, contracts)


def _cycle_problems(root: Path, contracts: Mapping[str, Contract]) -> list[str]:
    """Contracts that require each other in a circle, found by removing what has no open requirement."""
    open_requirements = {c.id: {r for r in c.requires if r in contracts} for c in contracts.values()}
    while ready := [name for name, needs in open_requirements.items() if not needs]:
        for name in ready:
            del open_requirements[name]
        for needs in open_requirements.values():
            needs.difference_update(ready)
    return [
        f"{root / name / CONTRACT_NAME}: requires itself, through {', '.join(sorted(needs))}"
        for name, needs in sorted(open_requirements.items())
    ]
