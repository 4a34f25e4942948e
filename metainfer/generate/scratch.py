"""Engines for tests and checks, made from facts: any corner of the facts, without a spec file for it."""

from __future__ import annotations

from pathlib import Path

from metainfer.checkpoint.facts import ModelFacts
from metainfer.ckb.facts import SERVING_FEATURES, Facts
from metainfer.ckb.routing import require_coverage, route
from metainfer.ckb.store import KnowledgeBase
from metainfer.generate.blueprint import NEEDED_UNITS
from metainfer.generate.constants import Limits
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.specializer import generate


def assemble_scratch(
    ckb_root: Path,
    facts: Facts,
    model: ModelFacts,
    out: Path,
    *,
    folded: bool,
    name: str = "scratch",
    digest: str = "sha256:" + "0" * 64,
    max_model_len: int = 512,
    max_concurrency: int = 8,
) -> Path:
    """Write an engine for `facts` and `model` to `out` and return `out`. Raises what routing and assembly raise.

    With `folded` false the branches on `S` stay, beside a `facts.py`: the exemplars as their authors wrote them.
    """
    inputs = scratch_inputs(
        ckb_root,
        facts,
        model,
        name=name,
        digest=digest,
        max_model_len=max_model_len,
        max_concurrency=max_concurrency,
    )
    generate(inputs, folded=folded).write(out)
    return out


def scratch_inputs(
    ckb_root: Path,
    facts: Facts,
    model: ModelFacts,
    *,
    name: str = "scratch",
    digest: str = "sha256:" + "0" * 64,
    max_model_len: int = 512,
    max_concurrency: int = 8,
) -> EngineInputs:
    """The inputs of such an engine. Raises what routing raises."""
    knowledge = KnowledgeBase.load(ckb_root)
    routing = route(knowledge, facts)
    require_coverage(routing, NEEDED_UNITS)
    return EngineInputs(
        name=name,
        spec=_spec_data(facts, name, max_model_len, max_concurrency),
        spec_path="(none)",
        facts=facts,
        model=model,
        model_digest=digest,
        routing=routing,
        ckb_root=ckb_root,
        limits=Limits(max_model_len, max_concurrency),
    )


def _spec_data(facts: Facts, name: str, max_model_len: int, max_concurrency: int) -> dict[str, object]:
    """What a spec with these facts would resolve to, as far as the manifest shows it."""
    return {
        "name": name,
        "model": {"source": {"path": "scratch"}, "licence": "none"},
        "workload": {"max_model_len": max_model_len, "max_concurrency": max_concurrency},
        "serving": {"features": [feature for feature in SERVING_FEATURES if getattr(facts, feature)]},
    }
