"""Units that did not come from an exemplar: written by a model or a person, for one contract of one engine."""

from __future__ import annotations

from dataclasses import dataclass

from metainfer.files import sha256_bytes
from metainfer.generate.manifest import Backend


@dataclass(frozen=True)
class WrittenUnits:
    """One Python file that makes all the units of one contract. It travels with the engine, as it was written."""

    contract: str
    text: str
    backend: Backend

    @property
    def path(self) -> str:
        """Where it lies in the engine's folder."""
        return written_path(self.contract)

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the text."""
        return sha256_bytes(self.text.encode())


def written_path(contract: str) -> str:
    """The file of a contract's written units, relative to the engine's folder.

    >>> written_path("family/rope")
    'units/family.rope.py'
    """
    return f"units/{contract.replace('/', '.')}.py"
