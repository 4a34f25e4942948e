"""From a spec file to the inputs of a generation: everything that can be refused is refused here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from metainfer.checkpoint.feasibility import Feasibility, require_feasible
from metainfer.checkpoint.sources import ModelFolder, fetch_model
from metainfer.ckb.facts import Facts
from metainfer.ckb.routing import require_coverage, route
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError
from metainfer.generate.blueprint import NEEDED_UNITS
from metainfer.generate.constants import Limits
from metainfer.generate.inputs import EngineInputs
from metainfer.pipeline.reference import read_sources
from metainfer.spec.load import load_named_spec, refuse_machine, refuse_unserved
from metainfer.spec.models import Generation

if TYPE_CHECKING:
    from metainfer.ckb.routing import Routing
    from metainfer.progress import Progress
    from metainfer.spec.models import Spec


@dataclass(frozen=True)
class Prepared:
    """A deployment that is valid, covered and feasible."""

    spec: Spec
    spec_path: Path
    model: ModelFolder
    knowledge: KnowledgeBase
    inputs: EngineInputs
    feasibility: Feasibility


def prepare(
    spec_path: Path,
    ckb_root: Path,
    repo_root: Path,
    cache: Path,
    progress: Progress,
    *,
    generation: Mapping[str, Any] | None = None,
    submitted: Collection[str] = (),
) -> Prepared:
    """Validate, fetch the model, route, and check coverage and memory. Raises the error of whatever does not hold.

    `generation`: fields of the spec's `generation` to set otherwise. `submitted`: units that somebody wrote. What is
    written needs no exemplar to be covered.
    """
    spec = load_named_spec(spec_path)
    if generation:
        spec = spec.model_copy(update={"generation": _changed(spec.generation, generation)})
    refuse_machine()
    refuse_unserved(spec)
    knowledge = KnowledgeBase.load(ckb_root)
    model = fetch_model(
        spec.model.source,
        cache=cache,
        base_dir=spec_path.parent,
        progress=progress,
        spec_path=spec_path,
        admit=partial(require_feasible, spec),
    )
    fits = require_feasible(spec, model.facts)
    facts = Facts.from_spec(spec, model.facts)
    routing = route(knowledge, facts)
    require_coverage(routing, NEEDED_UNITS, _written(spec.generation, routing, submitted))
    inputs = EngineInputs(
        name=spec.name,
        spec=spec.resolved(),
        spec_path=_relative(spec_path, repo_root),
        facts=facts,
        model=model.facts,
        model_digest=model.digest,
        routing=routing,
        ckb_root=ckb_root,
        limits=Limits.from_spec(spec),
        sources=read_sources(spec.generation.reference, repo_root) if spec.generation.asks_a_model else {},
    )
    return Prepared(spec, spec_path, model, knowledge, inputs, fits)


def asking(prepared: Prepared) -> Prepared:
    """The same with what a model is asked among the inputs, if one takes part."""
    from metainfer.pipeline.agents import agent_settings

    generation, inputs = prepared.spec.generation, prepared.inputs
    if not generation.asks_a_model:
        return prepared
    return replace(prepared, inputs=replace(inputs, agent=agent_settings(generation, inputs.sources)))


def _changed(generation: Generation, changes: Mapping[str, Any]) -> Generation:
    """InputError, in the words of the spec's own rules, for what does not go together."""
    try:
        return Generation.model_validate(generation.model_dump() | dict(changes))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        where = [".".join(map(str, problem["loc"])) for problem in problems]
        told = [problem["msg"].removeprefix("Value error, ") for problem in problems]
        lines = [f"{place}: {words}" if place else words for place, words in zip(where, told, strict=True)]
        raise InputError(f"generation: {'; '.join(lines)}") from error


def _written(generation: Generation, routing: Routing, submitted: Collection[str]) -> set[str]:
    """Ids of the contracts whose units a model or a person makes."""
    by_model = {c.id for c in routing.contracts if c.id in generation.contracts or not generation.contracts}
    by_person = {routing.by_unit[unit].id for unit in submitted if unit in routing.by_unit}
    return by_person | (by_model if generation.backend == "agents" else set())


def _relative(path: Path, root: Path) -> str:
    """The spec's path within the repository; its name alone if it lies outside, so that no folder leaks."""
    resolved = path.resolve()
    return resolved.relative_to(root).as_posix() if resolved.is_relative_to(root) else path.name
