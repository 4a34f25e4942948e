"""Makes a green engine faster: profile it, ask a model about the hottest units, and keep what passes and wins.

Every variant is judged like any written unit, then by every gate in the whole engine, and then measured beside the
engine that it is to improve. What does not win by more than the noise is not kept, and that is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from metainfer.agents.implementer import Outcome
from metainfer.agents.optimiser import find_variants, variants_of
from metainfer.agents.probe import probe
from metainfer.bench.duel import Duel, Metric, run_duel
from metainfer.bench.profile import Phase, Profile, profile_engine
from metainfer.files import canonical_json, pretty_json, sha256_bytes, write_atomic
from metainfer.generate.assemble import AssemblyError
from metainfer.pipeline.agents import brief_of, client_for, effort_of, exemplars_of
from metainfer.pipeline.arena import Arena, RunGates, Tools, with_units
from metainfer.pipeline.optimise_report import OptimiseReport
from metainfer.pipeline.unit_judge import UnitJudge, contracts_to_write
from metainfer.sandbox import Sandbox

if TYPE_CHECKING:
    from metainfer.agents.brief import Brief
    from metainfer.gates.report import GateReport
    from metainfer.generate.inputs import EngineInputs
    from metainfer.pipeline.agents import AgentAccess
    from metainfer.pipeline.blame import Candidate
    from metainfer.pipeline.prepare import Prepared
    from metainfer.progress import Progress
    from metainfer.spec.models import Generation

PROFILE_NAME = "profile.json"
VARIANTS_NAME = "variants.json"
REPORT_NAME = "optimise.json"
"""In a run's folder: where time went, every attempt with its code and findings, and what was tried and kept."""
_PHASES: dict[Metric, Phase] = {"latency": "decode", "throughput": "load"}


@dataclass(frozen=True)
class Optimised:
    """The engine as it is now, the gates' reports on it, and how it came to that."""

    candidate: Candidate
    gates: list[GateReport]
    report: OptimiseReport


def optimise(
    prepared: Prepared, candidate: Candidate, gates: Sequence[GateReport], engine_dir: Path, tools: Tools
) -> Optimised:
    """Try to make the engine in `engine_dir`, whose `gates` are green, faster; the folder holds what comes of it.

    Raises EndpointError if the model cannot be reached, StoppedError if somebody stopped all calls; a later run goes
    on from the replies that were kept. A budget that is used up only ends the asking.
    """
    inputs, settings, metric = prepared.inputs, prepared.spec.generation, prepared.spec.workload.optimise
    profile = _profile(prepared, candidate, engine_dir, tools)
    shares = {name: share for name, share in profile.shares(_PHASES[metric]).items() if share > 0}
    chosen, note = hottest(inputs, settings, candidate, list(shares))
    shown = ", ".join(f"{name} {share:.0%}" for name, share in list(shares.items())[:4])
    tools.progress.note(f"hottest for {metric}: {shown}{f'; {note}' if note else ''}")
    outcomes, tokens, usd = _ask(inputs, settings, candidate, profile, chosen, tools)
    write_atomic(tools.folder / VARIANTS_NAME, pretty_json([asdict(outcome) for outcome in outcomes]))
    arena = Arena(inputs, candidate, list(gates), engine_dir, tools)
    tried = [arena.try_all(outcome, shares[outcome.contract]) for outcome in outcomes]
    report = OptimiseReport(metric=metric, shares=shares, tried=tuple(tried), note=note)
    write_atomic(tools.folder / REPORT_NAME, pretty_json(report.model_dump(mode="json")))
    return Optimised(arena.finish([one.contract for one in report.kept], tokens, usd), arena.reports, report)


def tools_for(
    prepared: Prepared, access: AgentAccess, gates: RunGates, *, folder: Path, state: Path, progress: Progress
) -> Tools:
    """The tools of a run: everything in the sandbox, measured on the run's own model."""
    sandbox = Sandbox()

    def duel(old: Path, new: Path) -> Duel:
        return run_duel(
            old,
            new,
            model_dir=prepared.model.path,
            vocab_size=prepared.model.facts.vocab_size,
            metric=prepared.spec.workload.optimise,
            sandbox=sandbox,
            progress=progress,
        )

    return Tools(access, sandbox, gates, duel, folder, state, progress)


def hottest(
    inputs: EngineInputs, settings: Generation, candidate: Candidate, by_heat: Sequence[str]
) -> tuple[list[str], str]:
    """Contracts to ask about, of those that ran, the hottest first; and a note if there are none.

    What somebody submitted stays theirs. A model that may not see exemplars is shown only
    what it wrote itself.
    """
    theirs = {own.contract for own in candidate.written if own.backend != "agents"}
    written = {own.contract for own in candidate.written if own.backend == "agents"}
    allowed = [name for name in contracts_to_write(inputs, settings.contracts) if name not in theirs]
    if settings.reference != "exemplars":
        allowed = [name for name in allowed if name in written]
    chosen = [name for name in by_heat if name in allowed][: settings.optimise_contracts]
    if chosen:
        return chosen, ""
    if settings.reference != "exemplars":
        shown = f"reference {settings.reference} shows the model only what it wrote"
        return [], f"nobody was asked: {shown}, and none of that ran here"
    return [], "nobody was asked: none of the contracts that the model may write ran here"


def _profile(prepared: Prepared, candidate: Candidate, engine_dir: Path, tools: Tools) -> Profile:
    """The engine's profile, or the one kept of the same engine, so that a later run asks the same questions."""
    digest = sha256_bytes(canonical_json(candidate.engine.manifest.files))
    kept = tools.state / "profiles" / f"{digest}.json"
    step = "profile"
    tools.progress.start(step)
    try:
        profile = Profile.model_validate_json(kept.read_bytes())
    except (OSError, ValidationError):
        model = prepared.model
        profile = profile_engine(engine_dir, model.path, model.facts.vocab_size, tools.sandbox)
        write_atomic(kept, pretty_json(profile.model_dump(mode="json")))
    write_atomic(tools.folder / PROFILE_NAME, pretty_json(profile.model_dump(mode="json")))
    tools.progress.done(step, f"{len(profile.contracts)} units, {len(profile.phases)} phases")
    return profile


def _ask(
    inputs: EngineInputs,
    settings: Generation,
    candidate: Candidate,
    profile: Profile,
    contracts: Sequence[str],
    tools: Tools,
) -> tuple[list[Outcome], int, float]:
    """What the model offers for each contract; tokens and dollars that these inputs have cost so far."""
    made_of = client_for(inputs, settings, tools.access, folder=tools.folder, state=tools.state)
    kernels = tools.state / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    units = UnitJudge(inputs, tools.sandbox, kernels)
    for own in candidate.written:
        units.keep(own)
    judge = _FittingJudge(units, candidate)
    effort = effort_of(settings)
    unseen = settings.model_copy(update={"reference": "none"})  # the present code stands in the exemplar's place

    async def ask_for_all() -> list[Outcome]:
        async with made_of.connect() as client:
            await probe(client, made_of.model, tools=settings.tools, schema=False)

            async def one(contract: str) -> Outcome:
                step = f"ask for a faster {contract}"
                tools.progress.start(step)
                told = brief_of(inputs, contract, unseen)
                present, figures = present_code(inputs, candidate, contract), profile.in_words(contract)
                outcome = await find_variants(told, present, figures, client, made_of.model, judge, effort)
                variants = len(variants_of(outcome))
                tools.progress.done(step, f"{variants} of {len(outcome.attempts)} answers hold")
                return outcome

            return list(await asyncio.gather(*map(one, contracts)))

    outcomes = asyncio.run(ask_for_all()) if contracts else []
    spent = made_of.ledger.spent()
    return outcomes, spent.tokens, round(spent.usd, 6)


def present_code(inputs: EngineInputs, candidate: Candidate, contract: str) -> str:
    """The file that makes a contract's units now: as it was written, or the exemplars folded for this deployment."""
    own = next((own.text for own in candidate.written if own.contract == contract), None)
    return exemplars_of(inputs, contract) if own is None else own


@dataclass(frozen=True)
class _FittingJudge:
    """The judge of units, who also asks whether a file fits the written units around it."""

    judge: UnitJudge
    candidate: Candidate

    async def __call__(self, brief: Brief, code: str) -> Sequence[str]:
        findings = await self.judge(brief, code)
        if not findings:
            try:
                with_units(self.judge.inputs, self.candidate, brief.contract.id, code)
            except AssemblyError as error:
                return [str(error)]
        return findings
