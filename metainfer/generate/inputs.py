"""Everything that decides an engine's bytes, and the hash over it: same hash, same bytes, no work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metainfer.files import canonical_json, sha256_bytes
from metainfer.generate import GENERATOR_VERSION
from metainfer.generate.constants import Limits
from metainfer.generate.manifest import Generator

if TYPE_CHECKING:
    from metainfer.checkpoint.facts import ModelFacts
    from metainfer.ckb.facts import Facts
    from metainfer.ckb.routing import Routing

SHAPING_TOOLS = ("libcst", "ruff")
"""Tools whose version changes the output; pinned exactly in pyproject.toml."""


def generator() -> Generator:
    """This generator and the exact versions of its tools."""
    return Generator(version=str(GENERATOR_VERSION), tools={tool: version(tool) for tool in SHAPING_TOOLS})


@dataclass(frozen=True)
class EngineInputs:
    """One deployment, resolved: nothing in it depends on the time, the machine or the network."""

    name: str
    spec: Mapping[str, Any]
    """The spec with its defaults filled in, as plain data."""
    spec_path: str
    """Relative to the repository; for people, not part of the hash."""
    facts: Facts
    model: ModelFacts
    model_digest: str
    routing: Routing
    ckb_root: Path
    limits: Limits
    generator: Generator = field(default_factory=generator)
    agent: Mapping[str, Any] | None = None
    """All that decides what a model is asked; None if none is."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Texts from elsewhere that a model may look at, by name; `agent` holds their digest."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Contract id to the digest of what a person wrote for it. (What a model writes follows from `agent`.)"""

    @property
    def input_hash(self) -> str:
        """Hex SHA-256 over all of it."""
        return sha256_bytes(
            canonical_json(
                {
                    "spec": dict(self.spec),
                    "model": self.model_digest,
                    "contracts": {c.id: c.digest for c in self.routing.contracts},
                    "variants": None,
                    "generator": self.generator.model_dump(),
                    "agent": self.agent,
                    "overrides": dict(self.overrides),
                }
            )
        )
