"""What the base commit says about one engine: its spec, its knowledge, what a model is asked. Nothing else counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metainfer.ci.repository import Checkout, full_sha
from metainfer.errors import InputError
from metainfer.pipeline.knowledge import export_knowledge
from metainfer.pipeline.prepare import Prepared, asking, prepare
from metainfer.spec.load import load_named_spec

if TYPE_CHECKING:
    from metainfer.progress import Progress
    from metainfer.spec.models import Spec


@dataclass(frozen=True)
class Deployment:
    """One engine at one commit."""

    checkout: Checkout
    base: str
    spec_path: str
    """From the repository's root."""
    spec: Spec
    ckb_root: Path

    @property
    def file(self) -> Path:
        return self.checkout.root / self.spec_path

    def prepared(self, cache: Path, progress: Progress) -> Prepared:
        """With its model fetched, routed, and found to fit this machine. Raises what refuses it."""
        return asking(prepare(self.file, self.ckb_root, self.checkout.root, cache, progress))

    def settings(self) -> Mapping[str, Any] | None:
        """All that a model is asked, as an engine's manifest must have it; None if none takes part."""
        from metainfer.pipeline.agents import agent_settings
        from metainfer.pipeline.reference import read_sources

        generation = self.spec.generation
        if not generation.asks_a_model:
            return None
        return agent_settings(generation, read_sources(generation.reference, self.checkout.root))


def deployment_at(checkout: Checkout, base: str, spec_path: str, state: Path) -> Deployment:
    """The deployment that `spec_path` describes at commit `base`, which must be what is checked out.

    Raises InputError if it is not, or there is no such spec.
    """
    base = checkout.commit(full_sha(base))
    if checkout.commit("HEAD") != base:
        raise InputError(
            f"{checkout.root} is at {checkout.commit('HEAD')[:12]}, not at the base {base[:12]}; check that out"
        )
    data = checkout.read(base, spec_path)
    if data is None:
        raise InputError(f"commit {base[:12]} has no {spec_path}")
    file = checkout.root / spec_path
    if file.is_symlink() or not file.is_file() or file.read_bytes() != data:
        raise InputError(f"{file} is not what commit {base[:12]} holds; check it out again")
    return Deployment(checkout, base, spec_path, load_named_spec(file), export_knowledge(checkout, base, state))
