"""Which model can write which units: independent samples per contract, judged as in a run, up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.agents.answer import WRITE_FILE, read_answer, said
from metainfer.agents.brief import Brief, feedback_prompt, implementer_prompt
from metainfer.agents.budget import BudgetError, Ledger, Limits, Purpose
from metainfer.agents.client import AnswerError, ChatClient, Endpoint, EndpointError
from metainfer.agents.implementer import bounded
from metainfer.agents.messages import ChatRequest, Message
from metainfer.agents.probe import probe
from metainfer.agents.replies import ReplyStore
from metainfer.agents.transcript import Transcript
from metainfer.pipeline.agents import AgentAccess, brief_of, require_contracts
from metainfer.pipeline.eval_report import EvalReport, Sample, Score
from metainfer.pipeline.unit_judge import UnitJudge, contracts_to_write
from metainfer.spec.models import Generation

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract
    from metainfer.generate.inputs import EngineInputs
    from metainfer.progress import Progress
    from metainfer.sandbox import Sandbox


@dataclass(frozen=True)
class EvalPlan:
    """What to evaluate, and how long."""

    settings: Generation
    k: int
    limits: Limits
    folder: Path
    """Gets the transcript and the ledger; replies are shared with all evaluations beside it."""


def evaluate(
    inputs: EngineInputs, plan: EvalPlan, access: AgentAccess, *, sandbox: Sandbox, progress: Progress
) -> EvalReport:
    """Ask for k samples of every contract, judge each, and report what was done when the limit came."""
    require_contracts(inputs, plan.settings)
    access = access.priced_for(plan.settings.model or "")
    ledger = Ledger(plan.folder / "ledger.jsonl", plan.limits, price=access.price)
    kernels = plan.folder / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    judge = UnitJudge(inputs, sandbox, kernels)
    contracts, lone = _judged_alone(inputs, contracts_to_write(inputs, plan.settings.contracts))
    spent: list[_Talk] = []
    samples, stopped = asyncio.run(_all_samples(inputs, plan, access, ledger, judge, progress, contracts, spent))
    return EvalReport(
        model=plan.settings.model or "",
        reference=plan.settings.reference,
        k=plan.k,
        rounds=plan.settings.rounds,
        temperature=plan.settings.temperature,
        prompts=_prompt_version(),
        scores=[_score(inputs, name, [s for s in samples if s.contract == name]) for name in contracts],
        unfinished=[name for name in contracts if sum(s.contract == name and not s.cut for s in samples) < plan.k]
        + list(lone),
        tokens=sum(talk.tokens for talk in spent),
        cost_usd=round(sum(talk.usd for talk in spent), 6),
        wall_s=round(ledger.wall_s, 1),
        stopped="; ".join(filter(None, [stopped, *lone.values()])),
    )


async def _all_samples(
    inputs: EngineInputs,
    plan: EvalPlan,
    access: AgentAccess,
    ledger: Ledger,
    judge: UnitJudge,
    progress: Progress,
    contracts: Sequence[str],
    spent: list[_Talk],
) -> tuple[list[Sample], str]:
    """Every sample that was made, sample by sample over all contracts, so that a limit cuts all of them alike."""
    settings = plan.settings
    client = ChatClient(
        Endpoint(access.base_url, settings.model or "", access.api_key),
        ledger=ledger,
        replies=ReplyStore(plan.folder.parent / "replies"),
        transcript=Transcript(plan.folder / "transcript.jsonl", access.secrets),
        concurrency=access.concurrency,
    )
    done: list[Sample] = []
    stopped: list[str] = []

    async def one(contract: str, number: int) -> None:
        talk = _Talk(contract, number)
        why = ""
        try:
            await _hold(talk, brief_of(inputs, contract, settings), client, settings, judge)
        except AnswerError as error:
            talk.finding = str(error)
        except (BudgetError, EndpointError) as error:
            why = str(error)  # what was measured until now stays measured
            stopped.append(why)
        spent.append(talk)
        if why and not talk.answers:
            return
        # One that was cut off after an answer that failed counts as failed: else only those that hold would be left.
        done.append(talk.sample(cut=bool(why)))
        verdict = "holds" if talk.passed_at is not None else f"does not hold: {talk.finding[:120]}"
        progress.note(f"{contract} #{number}: {verdict}")

    async with client:
        await probe(client, settings.model or "", tools=settings.tools, schema=False)
        places = asyncio.Semaphore(max(2, access.concurrency))

        async def in_turn(contract: str, number: int) -> None:
            async with places:
                if not stopped:
                    await one(contract, number)

        await asyncio.gather(*(in_turn(name, number) for number in range(1, plan.k + 1) for name in contracts))
    return done, stopped[0] if stopped else ""


@dataclass
class _Talk:
    """One conversation: first answer and repairs."""

    contract: str
    number: int
    answers: int = 0
    tokens: int = 0
    usd: float = 0.0
    passed_at: int | None = None
    finding: str = ""

    def sample(self, *, cut: bool) -> Sample:
        return Sample(
            contract=self.contract,
            sample=self.number,
            passed_at=self.passed_at,
            rounds=max(self.answers - 1, 0),
            tokens=self.tokens,
            finding=self.finding[:300],
            cut=cut,
        )


async def _hold(talk: _Talk, brief: Brief, client: ChatClient, settings: Generation, judge: UnitJudge) -> None:
    """Hold one conversation, all of it with temperature, and note in `talk` what comes of it."""
    opening = implementer_prompt(brief)
    messages: tuple[Message, ...] = opening
    for round_ in range(settings.rounds + 1):
        request = ChatRequest(
            model=settings.model or "",
            messages=messages,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            seed=talk.number,
            sample=talk.number,
            tools=(WRITE_FILE,) if settings.tools else (),
        )
        reply = await client.ask(request, Purpose(role="implementer", subject=brief.contract.id, round=round_))
        talk.answers += 1
        talk.tokens += reply.usage.total
        talk.usd += client.ledger.price.of(reply.usage.prompt_tokens, reply.usage.completion_tokens)
        answer = read_answer(reply, brief.contract.units)
        findings = list(answer.complaints or await judge(brief, answer.code))
        if not findings:
            talk.passed_at, talk.finding = round_, ""
            return
        talk.finding = findings[0]
        spoken = Message(role="assistant", content=said(reply))
        messages = (*opening, spoken, feedback_prompt(brief, bounded(findings)))


def _judged_alone(inputs: EngineInputs, contracts: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Contracts that can be judged by themselves; and of the others why they cannot, for nothing could hold there."""
    lone: dict[str, str] = {}
    for contract in inputs.routing.contracts:
        missing = sorted(name for name in _needed(inputs, contract) if inputs.routing.lacks_exemplar(name))
        if contract.id in contracts and missing:
            lone[contract.id] = f"{contract.id} needs {', '.join(missing)}, which nobody has written yet"
    return [name for name in contracts if name not in lone], lone


def _needed(inputs: EngineInputs, contract: Contract) -> set[str]:
    """Ids of all that a contract requires, and of what that requires."""
    direct = [other for other in inputs.routing.contracts if other.id in contract.requires]
    return {other.id for other in direct}.union(*(_needed(inputs, other) for other in direct))


def _score(inputs: EngineInputs, contract: str, samples: Sequence[Sample]) -> Score:
    return Score(
        contract=contract,
        units=[unit for unit, owner in inputs.routing.by_unit.items() if owner.id == contract],
        samples=len(samples),
        passed_first=sum(sample.passed_at == 0 for sample in samples),
        passed=sum(sample.passed_at is not None for sample in samples),
        tokens=sum(sample.tokens for sample in samples),
        finding=next((sample.finding for sample in samples if sample.finding), ""),
    )


def _prompt_version() -> int:
    from metainfer.agents.brief import PROMPT_VERSION

    return PROMPT_VERSION
