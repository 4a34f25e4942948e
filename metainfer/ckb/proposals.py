"""Proposals: typed changes of the knowledge base, with the evidence for them.

A proposal is data. `edits` says which files it would change, `apply` changes them, whole or not at all, and `describe`
tells a reviewer in words, marked where less is asked than before. Nothing here decides: owners of `ckb/` do.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from metainfer.ckb.deltas import (
    Deprecation,
    Evidence,
    NewContract,
    NewExemplar,
    NewFailureMode,
    NewPlatformFact,
    Proposal,
    RevisedField,
    RevisedFile,
    Revision,
)
from metainfer.ckb.editing import append_item, append_to_list, set_key, to_yaml
from metainfer.ckb.store import CHECK_NAME, CONTRACT_NAME, MUTANTS_NAME, KnowledgeBase, KnowledgeError
from metainfer.ckb.weakening import compare
from metainfer.errors import ConflictError, InputError
from metainfer.files import read_regular, write_atomic
from metainfer.spec.document import Document

_MAX_BYTES = 8 << 20
"""As much as one publication may hold."""


class ProposalError(InputError):
    """The proposal does not fit the knowledge base; the message says which delta, and why."""


class StaleProposalError(ConflictError):
    """The contract is not at the version that the proposal was written for."""


@dataclass(frozen=True)
class ProposedChange:
    """One changed file in words, as a pull request's body shows it."""

    path: str
    """Relative to the knowledge base."""
    words: str
    weakens: bool
    evidence: str


def read_proposal(path: Path) -> Proposal:
    """A proposal kept as JSON. Raises ProposalError, with a line for each thing that is wrong."""
    try:
        return Proposal.model_validate_json(read_regular(path, _MAX_BYTES))
    except OSError as error:
        raise ProposalError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False, include_input=False):
            place = ".".join(map(str, problem["loc"]))
            lines.append(": ".join(part for part in (str(path), place, problem["msg"]) if part))
        raise ProposalError("\n".join(lines)) from error


def edits(root: Path, proposal: Proposal) -> dict[str, bytes]:
    """The files that the proposal writes, by path relative to the knowledge base `root`; nothing is written.

    Raises ProposalError if a delta does not fit, StaleProposalError if a contract has moved on, and KnowledgeError if
    the base would not load afterwards.
    """
    texts: dict[str, str] = {}
    raised: set[str] = set()
    for delta in proposal.deltas:
        if isinstance(delta, NewContract):
            _add_contract(root, texts, delta)
        else:
            _revise(root, texts, raised, delta)
    files = {path: text.encode() for path, text in texts.items()}
    _require_loading(root, files)
    return files


def apply(root: Path, proposal: Proposal) -> list[str]:
    """Write the proposal into `root`, and return the changed paths. On any failure the base is as it was."""
    files = edits(root, proposal)
    before = {path: (root / path).read_bytes() if (root / path).exists() else None for path in files}
    try:
        for path, data in files.items():
            write_atomic(root / path, data)
    except BaseException:
        for path, old in before.items():
            with contextlib.suppress(OSError):
                _put_back(root / path, old)
        raise
    return sorted(files)


def describe(root: Path, proposal: Proposal) -> list[ProposedChange]:
    """What the proposal changes, in words, what weakens the base first. `root` is the base before it."""
    files = edits(root, proposal)
    folders = {"/".join(path.split("/")[:2]) for path in files}
    before = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for folder in sorted(folders)
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    evidence = {folder: _evidence_for(folder, proposal) for folder in folders}
    return [
        ProposedChange(change.path, change.words, change.weakens, evidence["/".join(change.path.split("/")[:2])])
        for change in compare(before, {**before, **files})
    ]


def _add_contract(root: Path, texts: dict[str, str], delta: NewContract) -> None:
    folder = delta.definition.id
    if (root / folder).exists() or f"{folder}/{CONTRACT_NAME}" in texts:
        raise ProposalError(f"{folder}: there is such a contract already; revise it instead")
    wanted = {path for exemplar in delta.definition.exemplars for path in (exemplar.path, *exemplar.sources)}
    if wanted != set(delta.files):
        odd = sorted(wanted ^ set(delta.files))
        raise ProposalError(f"{folder}: {', '.join(odd)}: files and exemplars must name the same paths")
    texts[f"{folder}/{CONTRACT_NAME}"] = to_yaml(_written(delta.definition))
    if delta.check:
        texts[f"{folder}/{CHECK_NAME}"] = delta.check
    if delta.mutants:
        texts[f"{folder}/{MUTANTS_NAME}"] = to_yaml([_written(mutant) for mutant in delta.mutants])
    texts.update({f"{folder}/{path}": text for path, text in delta.files.items()})


def _revise(root: Path, texts: dict[str, str], raised: set[str], delta: Revision) -> None:
    """Change one contract, and raise its version once per proposal."""
    path = f"{delta.contract}/{CONTRACT_NAME}"
    text = _current(root, texts, path)
    if text is None:
        raise ProposalError(f"{delta.contract}: there is no such contract")
    if delta.contract not in raised:
        data = Document.parse(text, path).data
        if data["version"] != delta.version:
            raise StaleProposalError(
                f"{delta.contract}: the proposal is for version {delta.version}, the base has {data['version']}; "
                "look at what changed and propose again"
            )
        text = set_key(text, "version", delta.version + 1)
        raised.add(delta.contract)
    texts[path] = _revised_contract(text, delta)
    if isinstance(delta, NewExemplar | NewFailureMode) and delta.mutants:
        mutants = _current(root, texts, f"{delta.contract}/{MUTANTS_NAME}") or ""
        for mutant in delta.mutants:
            mutants = append_to_list(mutants, _written(mutant))
        texts[f"{delta.contract}/{MUTANTS_NAME}"] = mutants
    for file, content in _new_files(root, delta).items():
        texts[f"{delta.contract}/{file}"] = content


def _revised_contract(text: str, delta: Revision) -> str:
    match delta:
        case NewExemplar(exemplar=exemplar):
            return append_item(text, "exemplars", _written(exemplar))
        case NewFailureMode(failure_mode=mode):
            return append_item(text, "failure_modes", _written(mode))
        case NewPlatformFact(fact=fact):
            return append_item(text, "platform_facts", _written(fact))
        case RevisedField(field=field, value=value):
            return set_key(text, field, value)
        case Deprecation(reason=reason):
            return set_key(text, "deprecated", reason)
    return text


def _new_files(root: Path, delta: Revision) -> Mapping[str, str]:
    match delta:
        case RevisedFile(path=path, text=text):
            if not (root / delta.contract / path).is_file():
                raise ProposalError(f"{delta.contract}/{path}: no such file to revise")
            return {path: text}
        case NewExemplar(exemplar=exemplar, files=files):
            wanted = {exemplar.path, *exemplar.sources}
            if extra := set(files) - wanted:
                raise ProposalError(f"{delta.contract}: {', '.join(sorted(extra))}: the exemplar does not name it")
            for path, text in files.items():
                target = root / delta.contract / path
                if target.exists() and target.read_text("utf-8") != text:
                    raise ProposalError(f"{delta.contract}/{path}: is there already, with another text; revise it")
            return files
    return {}


def _current(root: Path, texts: Mapping[str, str], path: str) -> str | None:
    if path in texts:
        return texts[path]
    file = root / path
    return file.read_text("utf-8") if file.is_file() else None


def _written(model: BaseModel) -> Any:
    """A model as a person would write it: nothing that says its default."""
    return json.loads(model.model_dump_json(by_alias=True, exclude_defaults=True))


def _require_loading(root: Path, files: Mapping[str, bytes]) -> None:
    """Load a copy of the base with the changes in it; problems are told with paths as in the base itself."""
    with tempfile.TemporaryDirectory(prefix="metainfer-proposal-") as scratch:
        copy = Path(scratch) / "ckb"
        shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for path, data in files.items():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_bytes(data)
        try:
            KnowledgeBase.load(copy)
        except KnowledgeError as error:
            raise KnowledgeError([line.replace(str(copy), str(root)) for line in error.problems]) from None


def _put_back(path: Path, data: bytes | None) -> None:
    if data is not None:
        write_atomic(path, data)
        return
    path.unlink(missing_ok=True)
    # Folders that only the failed proposal made.
    for folder in (path.parent, path.parent.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _evidence_for(folder: str, proposal: Proposal) -> str:
    lines = []
    for delta in proposal.deltas:
        contract = delta.definition.id if isinstance(delta, NewContract) else delta.contract
        if contract == folder:
            lines += [_evidence_line(evidence) for evidence in delta.evidence]
    return "; ".join(dict.fromkeys(lines))


def _evidence_line(evidence: Evidence) -> str:
    figures = ", ".join(f"{name} {value}" for name, value in evidence.figures.items())
    return f"{evidence.summary} ({', '.join(part for part in (figures, evidence.source) if part)})"
