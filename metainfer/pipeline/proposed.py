"""Knowledge that travels with an engine: proposals read against the base, as files and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.errors import MetainferError, RefusedError
from metainfer.forge.body import KnowledgeChange
from metainfer.pipeline.knowledge import pinned_elsewhere

if TYPE_CHECKING:
    from metainfer.ckb.deltas import Proposal
    from metainfer.progress import Progress

PROPOSAL_NAME = "proposal.json"
"""In a run's folder: the knowledge that its model proposes, as `metainfer run --propose` reads it."""


@dataclass(frozen=True)
class ProposedKnowledge:
    """What a pull request brings besides its engine; empty means nothing."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path from the repository's root, all below ckb/."""
    changes: Sequence[KnowledgeChange] = ()


def read_proposals(paths: Sequence[Path], ckb_root: Path) -> ProposedKnowledge:
    """The proposals of `paths`, one after the other, against the knowledge base `ckb_root`, which stays as it is.

    Raises ProposalError if a file or delta is wrong or no pull request may hold it, StaleProposalError if a contract
    has moved on, KnowledgeError if the base would not load with them, RefusedError if the base is kept elsewhere.
    """
    if not paths:
        return ProposedKnowledge()
    if elsewhere := pinned_elsewhere(ckb_root):
        raise RefusedError(f"ckb/ is a submodule, kept in {elsewhere}: propose the change there, then move the pin")
    from metainfer.ckb.proposals import ProposalError, describe, edits
    from metainfer.ckb.store import KnowledgeError

    proposal = _joined(paths)
    try:
        files = {f"ckb/{path}": data for path, data in edits(ckb_root, proposal).items()}
    except KnowledgeError as error:  # told with the paths that the author knows, not those of this run's export
        raise KnowledgeError([line.replace(f"{ckb_root}/", "ckb/") for line in error.problems]) from None
    if complaints := _unpublishable(files, ckb_root):
        raise ProposalError("\n".join(complaints))
    changes = [
        KnowledgeChange(f"ckb/{change.path}", change.words, change.weakens, change.evidence)
        for change in describe(ckb_root, proposal)
    ]
    return ProposedKnowledge(files, changes)


def with_own_proposal(
    knowledge: ProposedKnowledge, given: Sequence[Path], run_folder: Path, ckb_root: Path, progress: Progress
) -> ProposedKnowledge:
    """`knowledge`, read from `given`, and what the run itself proposes in its folder, if it does.

    What a run found never stands in the way of what people propose: where it does not fit beside theirs, it stays in
    the run's folder.
    """
    own = run_folder / PROPOSAL_NAME
    if not own.exists():
        return knowledge
    try:
        return read_proposals([*given, own], ckb_root)
    except MetainferError as error:
        progress.note(f"what the model proposes to know is left in {own}: {error}")
        return knowledge


def _unpublishable(files: Mapping[str, bytes], ckb_root: Path) -> list[str]:
    """What publishing would refuse of the files, said before minutes of gates instead of after them."""
    from metainfer.forge.paths import KNOWLEDGE, path_complaints, size_complaints, spelling_complaints

    there = [f"{KNOWLEDGE}{path.relative_to(ckb_root).as_posix()}" for path in ckb_root.rglob("*") if path.is_file()]
    complaints = path_complaints(files, [KNOWLEDGE]) + spelling_complaints(files, there) + size_complaints(files)
    return complaints + [f"{path}: holds a NUL byte; only text is allowed" for path in files if b"\0" in files[path]]


def _joined(paths: Sequence[Path]) -> Proposal:
    from metainfer.ckb.proposals import read_proposal

    first, *others = [read_proposal(path) for path in paths]
    return first.model_copy(update={"deltas": [*first.deltas, *(d for other in others for d in other.deltas)]})
