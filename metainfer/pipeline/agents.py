"""Lets a model write the units of an engine, contract by contract, and says what became of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metainfer.agents.address import read_address
from metainfer.agents.brief import PROMPT_VERSION, Brief, make_brief
from metainfer.agents.budget import STOP_FILE, Ledger, Limits, Price
from metainfer.agents.client import ChatClient, Endpoint
from metainfer.agents.implementer import Effort, Outcome, implement
from metainfer.agents.pausing import together
from metainfer.agents.planner import Step
from metainfer.agents.prices import price_for
from metainfer.agents.probe import probe
from metainfer.agents.recorded import Recorded, RecordedClient
from metainfer.agents.replies import ReplyStore
from metainfer.agents.respondent import Respondent
from metainfer.agents.structured import Asker
from metainfer.agents.transcript import Transcript
from metainfer.errors import InputError, RefusedError
from metainfer.files import pretty_json, write_atomic
from metainfer.generate.blueprint import UNIT_MODULES
from metainfer.generate.constants import engine_constants
from metainfer.generate.folding import fold
from metainfer.generate.manifest import AgentRecord
from metainfer.generate.stubs import signature_imports
from metainfer.generate.written import WrittenUnits
from metainfer.pipeline.reference import PREFIX, excerpt, sources_digest
from metainfer.pipeline.roles import LEFT, Roles, objections_of, unreviewed
from metainfer.pipeline.unit_judge import UnitJudge, contracts_to_write, waves
from metainfer.pipeline.verdicts import RememberingJudge

if TYPE_CHECKING:
    from metainfer.generate.inputs import EngineInputs
    from metainfer.progress import Progress
    from metainfer.sandbox import Sandbox
    from metainfer.spec.models import Generation

TRANSCRIPT_NAME = "transcript.jsonl"
ENDPOINT_NAME = "endpoint.json"
"""In a run's folder: where the model was, and what it can."""
LEDGER_NAME = "ledger.jsonl"
"""In the folder of a run that went in rounds: what they cost; of others the ledger lies with those of their inputs."""
OUTCOMES_NAME = "outcomes.json"
"""In a run's folder: per contract every attempt, with its code and what was found in it."""
_BUDGETS = {"budget_usd", "budget_tokens", "budget_wall_s"}


def agent_settings(generation: Generation, sources: Mapping[str, str] | None = None) -> dict[str, Any]:
    """All that decides what a model is asked: what `EngineInputs.agent` holds. `sources`: those of the inputs."""
    shown = {"sources": sources_digest(sources)} if sources else {}
    return generation.model_dump(mode="json", exclude=_BUDGETS) | {"prompts": PROMPT_VERSION} | shown


@dataclass(frozen=True)
class AgentAccess:
    """Where the model is and what it may cost; no part of the inputs."""

    base_url: str
    api_key: str = field(default="", repr=False)
    concurrency: int = 2
    price: Price | None = None
    """As a person gave it; None is the listed one, and nothing for a machine of one's own."""
    halted: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    """Asked before each call for a reason not to make it."""

    def __post_init__(self) -> None:
        """InputError if the address is none."""
        read_address(self.base_url)

    def priced_for(self, model: str) -> AgentAccess:
        """The same with the price of a model. InputError if nobody knows it."""
        return self if self.price else replace(self, price=price_for(model, self.base_url))

    @property
    def secrets(self) -> list[str]:
        """What may be written nowhere."""
        return [self.api_key, read_address(self.base_url).password]

    @property
    def shown_url(self) -> str:
        """The address without a name and password that it may hold."""
        return read_address(self.base_url).shown


Access = AgentAccess | Recorded
"""A model that can be asked, or what it has said already."""


@dataclass(frozen=True)
class Written:
    """What the model wrote that held, and what became of every contract."""

    units: Sequence[WrittenUnits]
    record: AgentRecord
    outcomes: Sequence[Outcome]


class NotWrittenError(RefusedError):
    """Units could not be written within the effort and budget, and the spec allows nothing in their place."""


def write_units(
    inputs: EngineInputs,
    settings: Generation,
    access: Access,
    *,
    folder: Path,
    state: Path,
    sandbox: Sandbox,
    progress: Progress,
) -> Written:
    """Ask the model for every contract's units, judge them, and let it repair them.

    `folder` gets the transcript; replies and the ledger of these inputs lie in `state`, so that a run that was cut off
    goes on where it was and within the same budget. Raises EndpointError if the model cannot be reached, PausedError if
    replies that were recorded do not suffice, and NotWrittenError where nothing may take the place of units that do not
    hold.
    """
    require_contracts(inputs, settings)
    client = client_for(inputs, settings, access, folder=folder, state=state)
    with_kernels = state / "kernels"
    with_kernels.mkdir(parents=True, exist_ok=True)
    judge = UnitJudge(inputs, sandbox, with_kernels)
    if isinstance(access, Recorded):
        judge = RememberingJudge(inputs, sandbox, with_kernels, access.verdicts)
    outcomes = asyncio.run(_ask_for_all(inputs, settings, client, judge, progress, folder))
    write_atomic(folder / OUTCOMES_NAME, pretty_json([asdict(outcome) for outcome in outcomes]))
    units = [WrittenUnits(o.contract, with_newline(o.code), "agents") for o in outcomes if o.code is not None]
    missing = [outcome.contract for outcome in outcomes if outcome.code is None]
    lacking = [contract for contract in missing if inputs.routing.lacks_exemplar(contract)]
    if missing and (lacking or settings.fallback == "none"):
        instead = "they have no exemplar to fall back to" if lacking else "or fallback: exemplar"
        raise NotWrittenError(
            f"{settings.model} wrote no units that hold for {', '.join(lacking or missing)}; "
            f"allow more rounds or samples{'; ' if lacking else ', '}{instead}"
        )
    spent = client.ledger.spent()
    left = [outcome.contract for outcome in outcomes if outcome.stopped == LEFT]
    record = AgentRecord(
        settings=agent_settings(settings, inputs.sources),
        fell_back=tuple(contract for contract in missing if contract not in left),
        left=tuple(left),
        objections=objections_of(outcomes),
        unreviewed=unreviewed(outcomes),
        tokens=spent.tokens,
        cost_usd=round(spent.usd, 6),
    )
    return Written(units, record, outcomes)


@dataclass(frozen=True)
class Client:
    """What a client is made of. It belongs to an event loop, so it is made inside of one."""

    access: Access
    model: str
    ledger: Ledger
    transcript: Transcript
    replies: ReplyStore

    def connect(self) -> Respondent:
        if isinstance(self.access, Recorded):
            return RecordedClient(self.access, self.model, self.transcript)
        return ChatClient(
            Endpoint(self.access.base_url, self.model, self.access.api_key),
            ledger=self.ledger,
            replies=self.replies,
            transcript=self.transcript,
            concurrency=self.access.concurrency,
        )


def require_contracts(inputs: EngineInputs, settings: Generation) -> None:
    """InputError for a contract that this engine does not have."""
    unknown = set(settings.contracts) - {contract.id for contract in inputs.routing.contracts if contract.units}
    if unknown:
        raise InputError(f"no contract of this engine is called {', '.join(sorted(unknown))}")


def client_for(inputs: EngineInputs, settings: Generation, access: Access, *, folder: Path, state: Path) -> Client:
    """A client whose calls are booked on these inputs, within the budgets, and written down in `folder`."""
    if isinstance(access, Recorded):
        book = folder / LEDGER_NAME
        access.copy_ledger(book)
        transcript = Transcript(folder / TRANSCRIPT_NAME)
        return Client(access, settings.model or "", Ledger(book, Limits()), transcript, access.correspondence.replies)
    access = access.priced_for(settings.model or "")
    ledger = Ledger(
        state / "ledgers" / f"{inputs.input_hash}.jsonl",
        Limits(
            usd=settings.budget_usd if access.price else None,
            tokens=settings.budget_tokens,
            wall_s=settings.budget_wall_s,
        ),
        price=access.price,
        stop_file=state / STOP_FILE,
        halted=access.halted,
    )
    transcript = Transcript(folder / TRANSCRIPT_NAME, access.secrets)
    return Client(access, settings.model or "", ledger, transcript, ReplyStore(state / "replies"))


async def _ask_for_all(
    inputs: EngineInputs, settings: Generation, made_of: Client, judge: UnitJudge, progress: Progress, folder: Path
) -> list[Outcome]:
    """What became of every contract, in the engine's order."""
    effort = effort_of(settings)
    contracts = contracts_to_write(inputs, settings.contracts)
    briefs = {contract: brief_of(inputs, contract, settings) for contract in contracts}
    async with made_of.connect() as client:
        found = await probe(client, made_of.model, tools=settings.tools, schema=bool(settings.roles))
        write_atomic(folder / ENDPOINT_NAME, pretty_json({"base_url": made_of.access.shown_url} | asdict(found)))
        roles = Roles(inputs, settings, Asker(client, made_of.model, settings.max_tokens), folder, progress)
        plan = await roles.plan(contracts, budget_of(settings))
        # Few at once, so that the budget goes to those that the plan puts first; one more than is asked, being judged.
        places = asyncio.Semaphore(made_of.access.concurrency + 1)

        async def one(step: Step) -> Outcome:
            if step.leave:
                return Outcome(step.contract, stopped=LEFT)
            async with places:
                name = f"write {step.contract}"
                progress.start(name)
                own = replace(effort, rounds=step.rounds, samples=step.samples)
                outcome = await implement(briefs[step.contract], client, made_of.model, judge, own)
                if outcome.code is not None:
                    judge.keep(WrittenUnits(step.contract, with_newline(outcome.code), "agents"))
                progress.done(name, _in_words(outcome))
                return outcome

        steps = {step.contract: step for step in plan.steps}
        outcomes: list[Outcome] = []
        for wave in waves(inputs.routing, list(steps)):
            outcomes += await together(*(one(steps[contract]) for contract in wave))
            if any(outcome.code is None and inputs.routing.lacks_exemplar(outcome.contract) for outcome in outcomes):
                return outcomes  # nothing can take its place, so all further calls would be for nothing
        outcomes.sort(key=lambda outcome: contracts.index(outcome.contract))
        if settings.fallback == "exemplar" or all(outcome.code is not None for outcome in outcomes):
            await roles.review(outcomes, briefs, judge)
            await roles.learn(outcomes)
        return outcomes


def budget_of(settings: Generation) -> Limits:
    """The spec's budget, as a plan goes by it: whatever the model costs, the question is the same."""
    return Limits(usd=settings.budget_usd or None, tokens=settings.budget_tokens, wall_s=settings.budget_wall_s)


def effort_of(settings: Generation) -> Effort:
    """How hard the spec says to try."""
    return Effort(settings.rounds, settings.samples, settings.temperature, settings.max_tokens, settings.tools)


def brief_of(inputs: EngineInputs, contract_id: str, settings: Generation) -> Brief:
    """What the implementer of one contract is told."""
    contract = next(c for c in inputs.routing.contracts if c.id == contract_id)
    facts = inputs.facts.model_dump(mode="json")
    constants = engine_constants(inputs.name, inputs.model_digest, inputs.model, inputs.limits)
    reference = exemplars_of(inputs, contract_id) if settings.reference == "exemplars" else ""
    if settings.reference.startswith(PREFIX):
        reference = excerpt(inputs.sources, contract)
    imports = signature_imports(contract)
    return make_brief(contract, inputs.routing, UNIT_MODULES, constants, facts, imports, reference)


def exemplars_of(inputs: EngineInputs, contract_id: str) -> str:
    """The routed exemplars of a contract, folded for this deployment."""
    facts = inputs.facts.model_dump(mode="json")
    routing = inputs.routing
    paths = dict.fromkeys(
        routing.exemplars[unit].path
        for unit in UNIT_MODULES
        if routing.by_unit[unit].id == contract_id and unit in routing.exemplars
    )
    folder = inputs.ckb_root / contract_id
    return "\n\n".join(fold((folder / path).read_text("utf-8"), facts, path) for path in paths)


def with_newline(code: str | None) -> str:
    """A file's text as it is kept: lines that end alike, the last one too."""
    text = (code or "").replace("\r\n", "\n").replace("\r", "\n")
    return text if text.endswith("\n") else f"{text}\n"


def _in_words(outcome: Outcome) -> str:
    tried = len(outcome.attempts)
    if outcome.code is not None:
        return f"holds, at attempt {tried}"
    why = outcome.stopped or (outcome.attempts[-1].findings[0] if outcome.attempts else "no answer")
    return f"does not hold after {tried} attempts: {why[:200]}"
