"""Knowledge that travels with an engine: proposals read against the base, as files and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.forge.body import KnowledgeChange

if TYPE_CHECKING:
    from metainfer.ckb.deltas import Proposal


@dataclass(frozen=True)
class ProposedKnowledge:
    """What a pull request brings besides its engine; empty means nothing."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path from the repository's root, all below ckb/."""
    changes: Sequence[KnowledgeChange] = ()


def read_proposals(paths: Sequence[Path], ckb_root: Path) -> ProposedKnowledge:
    """The proposals of `paths`, one after the other, against the knowledge base `ckb_root`, which stays as it is.

    Raises ProposalError if a file or delta is wrong, StaleProposalError if a contract has moved on, KnowledgeError if
    the base would not load with them.
    """
    if not paths:
        return ProposedKnowledge()
    from metainfer.ckb.proposals import describe, edits
    from metainfer.ckb.store import KnowledgeError

    proposal = _joined(paths)
    try:
        files = {f"ckb/{path}": data for path, data in edits(ckb_root, proposal).items()}
    except KnowledgeError as error:  # told with the paths that the author knows, not those of this run's export
        raise KnowledgeError([line.replace(f"{ckb_root}/", "ckb/") for line in error.problems]) from None
    changes = [
        KnowledgeChange(f"ckb/{change.path}", change.words, change.weakens, change.evidence)
        for change in describe(ckb_root, proposal)
    ]
    return ProposedKnowledge(files, changes)


def _joined(paths: Sequence[Path]) -> Proposal:
    from metainfer.ckb.proposals import read_proposal

    first, *others = [read_proposal(path) for path in paths]
    return first.model_copy(update={"deltas": [*first.deltas, *(d for other in others for d in other.deltas)]})
