"""What a change of knowledge can be, in one word each: what a reviewer looks for first, and what reports count."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """One change. The values are what people read."""

    TOLERANCE_RAISED = "tolerance raised"
    RANGE_NARROWED = "range narrowed"
    CHECK_REMOVED = "check removed"
    CHECK_WEAKENED = "check weakened"
    """Fewer findings, more early ends, exceptions caught, names that mean something else."""
    MUTANT_REMOVED = "mutant removed"
    INVARIANT_DROPPED = "invariant dropped"
    FAILURE_MODE_DROPPED = "failure mode dropped"
    REQUIRES_DROPPED = "requires dropped"
    CONFLICT_DROPPED = "conflict dropped"
    UNIT_DROPPED = "unit dropped"
    SCOPE_NARROWED = "scope narrowed"
    DEPRECATION = "deprecation"
    CONTRACT_REMOVED = "contract removed"
    UNREADABLE = "unreadable"
    VERSION_NOT_RAISED = "version not raised"
    TO_READ = "to be read"
    """Code that judges others, changed in a way that its text does not decide."""
    ADDED = "added"
    REVISED = "revised"


LOUD = frozenset({Kind.VERSION_NOT_RAISED})
"""Called out like what weakens, though nothing is asked less: people and engines could not tell the two apart."""
