"""Making an engine again from its own manifest and a knowledge base: the proof that nobody edited it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metainfer.ckb.facts import Facts
from metainfer.ckb.routing import require_coverage, route
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError
from metainfer.generate.blueprint import NEEDED_UNITS
from metainfer.generate.constants import Limits
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.manifest import (
    EVIDENCE_NAME,
    Manifest,
    engine_files,
    read_manifest,
    recorded_model,
    recorded_spec,
)
from metainfer.generate.specializer import GeneratedEngine, generate
from metainfer.generate.written import WrittenUnits, written_path


def regenerate(engine_dir: Path, ckb_root: Path, written: Sequence[WrittenUnits] | None = None) -> GeneratedEngine:
    """Generate from the spec, model facts and digest that the manifest records. Needs no model and no network.

    `written`: units that a model or person wrote; by default those that lie in the engine's folder.
    """
    manifest = read_manifest(engine_dir)
    spec, model = recorded_spec(engine_dir, manifest), recorded_model(engine_dir, manifest)
    facts = Facts.from_spec(spec, model)
    routing = route(KnowledgeBase.load(ckb_root), facts)
    if written is None:
        written = _written(engine_dir, manifest)
    require_coverage(routing, NEEDED_UNITS, [own.contract for own in written])
    return generate(
        EngineInputs(
            name=spec.name,
            spec=spec.resolved(),
            spec_path=manifest.spec_path,
            facts=facts,
            model=model,
            model_digest=manifest.model.digest,
            routing=routing,
            ckb_root=ckb_root,
            limits=Limits.from_spec(spec),
            agent=manifest.agent.settings if manifest.agent else None,
            overrides={own.contract: own.digest for own in written if own.backend != "agents"},
        ),
        written,
        agent=manifest.agent,
    )


def _written(engine_dir: Path, manifest: Manifest) -> list[WrittenUnits]:
    """What a model or a person wrote, as it lies in the engine's folder."""
    backends = {unit.contract: unit.backend for unit in manifest.units if unit.backend != "specializer"}
    found = []
    for contract, backend in sorted(backends.items()):
        file = engine_dir / written_path(contract)
        if file.is_symlink() or not file.is_file():
            raise InputError(f"{file}: missing; the manifest says that it holds the units of {contract}")
        found.append(WrittenUnits(contract, file.read_text("utf-8"), backend))
    return found


def differences(engine_dir: Path, engine: GeneratedEngine) -> list[str]:
    """A line for each file of `engine_dir` that is not byte for byte what `engine` holds; evidence is left out."""
    found, odd = engine_files(engine_dir)
    extra = found.keys() - engine.files.keys() - {EVIDENCE_NAME}
    complaints = [f"{name}: not a regular file" for name in odd]
    complaints += [f"{name}: the generator does not make it" for name in sorted(extra)]
    for name, data in sorted(engine.files.items()):
        if name in odd:
            continue
        if name not in found:
            complaints.append(f"{name}: missing")
        elif found[name].stat().st_size != len(data) or found[name].read_bytes() != data:
            complaints.append(f"{name}: differs from what the generator makes")
    return complaints
