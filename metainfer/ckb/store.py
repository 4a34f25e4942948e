"""The knowledge base on disk, read whole and checked whole: every problem is reported at once, with its place."""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from metainfer.ckb.models import LAYERS, Contract, ContractFile, Mutant, MutantsFile
from metainfer.errors import InputError
from metainfer.files import MAX_TEXT_BYTES, canonical_json, sha256_bytes
from metainfer.spec.document import Document, DocumentError

CONTRACT_NAME, CHECK_NAME, MUTANTS_NAME = "contract.yaml", "check.py", "mutants.yaml"


_CHECK = re.compile(r"^def (check_\w+)\(", re.MULTILINE)


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
        folders: dict[str, Path] = {}
        for folder in _contract_folders(root, problems):
            folders[folder.relative_to(root).as_posix()] = folder
            try:
                contract = _load_contract(root, folder)
            except DocumentError as error:
                problems += error.problems
            else:
                contracts[contract.id] = contract
        problems += _reference_problems(root, contracts, folders.keys())
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
    if odd := list(_not_plain(folder)):
        raise DocumentError(odd)  # before anything reads them: a device has no end
    problems: list[str] = []
    expected = folder.relative_to(root).as_posix()
    if file.id != expected:
        problems.append(f"{document.where(['id'])}: id is {file.id}, but the folder is {expected}")
    for index, exemplar in enumerate(file.exemplars):
        for path in (exemplar.path, *exemplar.sources):
            if not (folder / path).is_file():
                problems.append(f"{document.where(['exemplars', index])}: {path}: no such file")
    problems += _check_problems(folder, document, file)
    mutants: list[Mutant] = []
    try:
        mutants = _load_mutants(folder)
    except DocumentError as error:
        problems += error.problems
    if problems:
        raise DocumentError(problems)
    return Contract(**file.model_dump(), digest=_digest(folder), mutants=mutants)


def _not_plain(folder: Path) -> Iterator[str]:
    for path in _files(folder):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            yield f"{path}: a link; knowledge is kept as plain files"
        elif not stat.S_ISREG(status.st_mode):
            yield f"{path}: not a regular file; knowledge is kept as plain files"
        elif status.st_size > MAX_TEXT_BYTES:
            yield f"{path}: more than {MAX_TEXT_BYTES:,} bytes; no file of this kind needs more"


def _check_problems(folder: Path, document: Document, file: ContractFile) -> Iterator[str]:
    path = folder / CHECK_NAME
    if not path.is_file():
        if file.units:
            yield f"{folder}: has units but no {CHECK_NAME}; a contract without a check proves nothing"
        return
    checks = _CHECK.findall(path.read_text("utf-8", "replace"))
    if not checks:
        yield f"{path}: defines no check_* function; a check that does nothing proves nothing"
    for index, mode in enumerate(file.failure_modes):
        if mode.caught_by.startswith("check_") and mode.caught_by not in checks:
            near = difflib.get_close_matches(mode.caught_by, checks, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(checks)}"
            where = document.where(["failure_modes", index, "caught_by"])
            yield f"{where}: {mode.id}: {CHECK_NAME} has no {mode.caught_by}; {hint}"


def _load_mutants(folder: Path) -> list[Mutant]:
    path = folder / MUTANTS_NAME
    if not path.is_file():
        return []
    document = Document.read(path)
    mutants = document.validate(MutantsFile).root
    problems = []
    for index, mutant in enumerate(mutants):
        target = folder / mutant.file
        count = target.read_text("utf-8").count(mutant.replace) if target.is_file() else 0
        if count != 1:
            where = document.where([index])
            problems.append(f"{where}: {mutant.name}: its text occurs {count} times in {mutant.file}, not once")
    if problems:
        raise DocumentError(problems)
    return mutants


def _files(folder: Path) -> list[Path]:
    """What belongs to a contract; hidden files and compiled Python do not."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if not path.is_dir()
        and not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)
    ]


def _digest(folder: Path) -> str:
    files = {path.relative_to(folder).as_posix(): sha256_bytes(path.read_bytes()) for path in _files(folder)}
    return sha256_bytes(canonical_json(files))


def _reference_problems(root: Path, contracts: Mapping[str, Contract], known: Collection[str]) -> list[str]:
    """References to contracts that do not exist; those whose own file is broken do."""
    problems = []
    for contract in contracts.values():
        for field, others in (("requires", contract.requires), ("conflicts", contract.conflicts)):
            for index, other in enumerate(others):
                if other not in known:
                    near = difflib.get_close_matches(other, known, 1)
                    hint = f"; did you mean {near[0]}?" if near else ""
                    where = Document.read(root / contract.id / CONTRACT_NAME).where([field, index])
                    problems.append(f"{where}: {field}: there is no contract {other}{hint}")
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
