"""The embedded backend: folds the exemplars routed for a spec into an engine. Offline, deterministic, free.

Units that an agent or a person wrote take their exemplars' places here, on the same path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metainfer.files import sha256_bytes, write_atomic
from metainfer.generate.assemble import (
    AssemblyError,
    UnitSource,
    assemble_module,
    check_import_order,
    format_python,
    used_config_names,
    used_macro_names,
)
from metainfer.generate.blueprint import MODULES, UNIT_MODULES, ModuleSlot
from metainfer.generate.constants import config_module, constants_header, engine_constants
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.lines import code_lines
from metainfer.generate.manifest import (
    MANIFEST_NAME,
    AgentRecord,
    Backend,
    ContractRecord,
    Manifest,
    ModelRecord,
    UnitRecord,
)
from metainfer.generate.stubs import stub_file
from metainfer.generate.written import WrittenUnits
from metainfer.spec.names import package_name

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract

DEPENDENCIES = (
    "fastapi>=0.115",
    "jinja2>=3.1.4",
    "numpy>=1.26",
    "prometheus-client>=0.21",
    "safetensors>=0.4.5",
    "tokenizers>=0.21",
    "torch>=2.6",
    "uvicorn>=0.32",
)
"""What an engine needs at run time, beside the standard library."""

_MODULE_ORDER = ("config", *(slot.name for slot in MODULES))
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class GeneratedEngine:
    """A candidate: its files by path relative to the engine's folder, manifest included."""

    manifest: Manifest
    files: Mapping[str, bytes]

    def write(self, folder: Path) -> None:
        """Write all files below `folder`; the manifest last, so that a folder with one is complete."""
        for path, data in self.files.items():
            if path != MANIFEST_NAME:
                write_atomic(folder / path, data)
        write_atomic(folder / MANIFEST_NAME, self.files[MANIFEST_NAME])


@dataclass(frozen=True)
class _Part:
    """One file that makes units, in its place: an exemplar, or what was written instead of it."""

    contract: Contract
    units: tuple[str, ...]
    text: str
    origin: str
    backend: Backend
    kernels: tuple[Path, ...] = ()


def generate(
    inputs: EngineInputs,
    written: Sequence[WrittenUnits] = (),
    *,
    agent: AgentRecord | None = None,
    folded: bool = True,
    scaffold: bool = False,
) -> GeneratedEngine:
    """Assemble the engine from the routed exemplars, or from what was `written` where a contract's units were.

    `agent`: what the model that wrote units is and cost. With `folded` false, branches on `S` stay beside a `facts.py`
    (for differential tests). With `scaffold`, stubs stand for units that have no exemplar and are not written yet:
    such an engine is for judging single units, and is never proposed. Without, they are an AssemblyError.
    """
    package = package_name(inputs.name)
    facts = inputs.facts.model_dump(mode="json")
    parts = _parts(inputs, {own.contract: own for own in written}, scaffold)
    modules = {
        slot.name: assemble_module(slot, _sources(parts[slot.name]), facts if folded else None) for slot in MODULES
    }
    check_import_order(modules, _MODULE_ORDER)
    kernels = _kernel_sources(parts)
    python = format_python(_package_files(package, modules, facts, folded))
    constants = engine_constants(inputs.name, inputs.model_digest, inputs.model, inputs.limits)
    used = used_config_names(python.values())
    python |= format_python({f"{package}/config.py": config_module([c for c in constants if c.name in used])})
    macros = used_macro_names(kernels.values(), [c.name for c in constants])
    csrc = {f"{package}/csrc/{name}": text for name, text in kernels.items()}
    csrc[f"{package}/csrc/constants.h"] = constants_header([c for c in constants if c.name in macros])
    rendered = _rendered(inputs, package, [*kernels])
    kept = {own.path: own.text for own in written}
    texts = dict(sorted({**python, **csrc, **rendered, **kept}.items()))
    return _with_manifest(inputs, package, parts, texts, agent)


def _parts(inputs: EngineInputs, written: Mapping[str, WrittenUnits], scaffold: bool) -> dict[str, list[_Part]]:
    """Module name to the files in it, in the order of the blueprint's units."""
    parts: dict[str, list[_Part]] = {}
    for slot in MODULES:
        placed: dict[str, _Part] = {}
        for unit in slot.units:
            part = _part(inputs, written, unit, scaffold)
            units = (*placed[part.origin].units, unit) if part.origin in placed else (unit,)
            placed[part.origin] = replace(part, units=units)
        parts[slot.name] = list(placed.values())
    return parts


def _part(inputs: EngineInputs, written: Mapping[str, WrittenUnits], unit: str, scaffold: bool) -> _Part:
    contract = inputs.routing.by_unit[unit]
    if own := written.get(contract.id):
        return _Part(contract, (unit,), own.text, own.path, own.backend)
    if scaffold and inputs.routing.lacks_exemplar(contract.id):
        return _Part(contract, (unit,), stub_file(contract), f"the interface of {contract.id}", "specializer")
    if unit not in inputs.routing.exemplars:
        raise AssemblyError(f"{contract.id} has no exemplar for {unit} here, and nobody wrote it")
    exemplar = inputs.routing.exemplars[unit]
    folder = inputs.ckb_root / contract.id
    return _Part(
        contract,
        (unit,),
        (folder / exemplar.path).read_text("utf-8"),
        f"ckb/{contract.id}/{exemplar.path}",
        "specializer",
        tuple(folder / source for source in exemplar.sources),
    )


def _sources(parts: list[_Part]) -> list[UnitSource]:
    return [UnitSource(part.origin, part.text, part.units) for part in parts]


def _kernel_sources(parts: Mapping[str, list[_Part]]) -> dict[str, str]:
    """C++ files by their name in `csrc/`."""
    paths = {path for module in parts.values() for part in module for path in part.kernels}
    return {path.name: path.read_text("utf-8") for path in sorted(paths)}


def _package_files(package: str, modules: Mapping[str, str], facts: Mapping[str, Any], folded: bool) -> dict[str, str]:
    files = {f"{package}/{name}.py": text for name, text in modules.items()}
    files[f"{package}/__init__.py"] = '"""An inference engine for one deployment, generated by metainfer."""\n'
    if not folded:
        values = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        files[f"{package}/facts.py"] = f"from types import SimpleNamespace\n\nS = SimpleNamespace({values})\n"
    return files


def _rendered(inputs: EngineInputs, package: str, kernels: list[str]) -> dict[str, str]:
    """Project metadata, README and the engine's own tests."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    values = {
        "engine": inputs.name,
        "package": package,
        "distribution": f"metainfer-engine-{package.replace('_', '-')}",
        "engine_command": package.replace("_", "-"),
        "input_hash": inputs.input_hash,
        "dependencies": DEPENDENCIES,
        "facts": inputs.facts,
        "limits": inputs.limits,
        "spec_path": inputs.spec_path,
        "model_name": _model_name(inputs.spec["model"]["source"]),
        "licence": inputs.spec["model"]["licence"],
        "modules": [ModuleSlot("config", "Every number of the deployment.", ()), *MODULES],
        "sources": kernels,
    }
    targets = {
        "pyproject.toml": "pyproject.toml.j2",
        "README.md": "README.md.j2",
        "tests/test_engine.py": "test_engine.py.j2",
    }
    texts = {path: environment.get_template(name).render(values) for path, name in targets.items()}
    test = "tests/test_engine.py"
    return texts | format_python({test: texts[test]})


def _model_name(source: Mapping[str, Any]) -> str:
    """A short name of the model for people: repository id, folder or file."""
    kind, value = next((kind, value) for kind, value in source.items() if value is not None)
    if kind == "hf":
        return str(value["id"])
    if kind == "path":
        return Path(str(value)).name
    if kind == "random":
        return f"seeded random weights, seed {value['seed']}"
    return f"GGUF with sha256 {value['sha256'][:12]}…" if value.get("sha256") else "a GGUF file"


def _with_manifest(
    inputs: EngineInputs,
    package: str,
    parts: Mapping[str, list[_Part]],
    texts: Mapping[str, str],
    agent: AgentRecord | None,
) -> GeneratedEngine:
    files = {path: text.encode() for path, text in texts.items()}
    code = {path: text for path, text in texts.items() if path.startswith(f"{package}/")}
    units = [
        UnitRecord(
            name=unit,
            module=UNIT_MODULES[unit],
            contract=part.contract.id,
            contract_version=part.contract.version,
            backend=part.backend,
            origin=part.origin,
        )
        for module in parts.values()
        for part in module
        for unit in part.units
    ]
    manifest = Manifest(
        engine=inputs.name,
        package=package,
        input_hash=inputs.input_hash,
        generator=inputs.generator,
        spec=dict(inputs.spec),
        spec_path=inputs.spec_path,
        model=ModelRecord(
            digest=inputs.model_digest,
            source=dict(inputs.spec["model"]["source"]),
            licence=inputs.spec["model"]["licence"],
            facts=inputs.model.model_dump(mode="json"),
        ),
        facts=inputs.facts.model_dump(mode="json"),
        contracts=tuple(
            ContractRecord(id=c.id, version=c.version, digest=c.digest)
            for c in sorted(inputs.routing.contracts, key=lambda c: c.id)
        ),
        units=tuple(units),
        agent=agent,
        dependencies=DEPENDENCIES,
        lines=sum(text.count("\n") for text in code.values()),
        code_lines=sum(code_lines(path, text) for path, text in code.items()),
        files={path: sha256_bytes(data) for path, data in files.items()},
    )
    return GeneratedEngine(manifest, {**files, MANIFEST_NAME: manifest.encode()})
