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
from metainfer.pipeline.agents import AgentAccess, brief_of
from metainfer.pipeline.eval_report import EvalReport, Sample, Score
from metainfer.pipeline.unit_judge import UnitJudge, contracts_to_write
from metainfer.spec.models import Generation

if TYPE_CHECKING:
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
    access = access.priced_for(plan.settings.model or "")
    ledger = Ledger(plan.folder / "ledger.jsonl", plan.limits, price=access.price)
    kernels = plan.folder / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    judge = UnitJudge(inputs, sandbox, kernels)
    samples, stopped = asyncio.run(_all_samples(inputs, plan, access, ledger, judge, progress))
    contracts = contracts_to_write(inputs, plan.settings.contracts)
    spent = ledger.spent()
    return EvalReport(
        model=plan.settings.model or "",
        reference=plan.settings.reference,
        k=plan.k,
        rounds=plan.settings.rounds,
        temperature=plan.settings.temperature,
        prompts=_prompt_version(),
        scores=[_score(inputs, name, [s for s in samples if s.contract == name]) for name in contracts],
        unfinished=[name for name in contracts if sum(s.contract == name for s in samples) < plan.k],
        tokens=spent.tokens,
        cost_usd=round(spent.usd, 6),
        wall_s=round(ledger.wall_s, 1),
        stopped=stopped,
    )


async def _all_samples(
    inputs: EngineInputs, plan: EvalPlan, access: AgentAccess, ledger: Ledger, judge: UnitJudge, progress: Progress
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
        brief = brief_of(inputs, contract, settings)
        try:
            sample = await _sample(brief, client, settings, judge, number)
        except BudgetError as error:
            stopped.append(str(error))
            return
        except AnswerError as error:
            sample = Sample(
                contract=contract, sample=number, passed_at=None, rounds=0, tokens=0, finding=str(error)[:300]
            )
        except EndpointError as error:
            stopped.append(str(error))  # what was measured until now stays measured
            return
        done.append(sample)
        verdict = "holds" if sample.passed_at is not None else f"does not hold: {sample.finding[:120]}"
        progress.note(f"{contract} #{number}: {verdict}")

    async with client:
        await probe(client, settings.model or "", tools=settings.tools, schema=False)
        contracts = contracts_to_write(inputs, settings.contracts)
        places = asyncio.Semaphore(max(2, access.concurrency))

        async def in_turn(contract: str, number: int) -> None:
            async with places:
                if not stopped:
                    await one(contract, number)

        await asyncio.gather(*(in_turn(name, number) for number in range(1, plan.k + 1) for name in contracts))
    return done, stopped[0] if stopped else ""


async def _sample(brief: Brief, client: ChatClient, settings: Generation, judge: UnitJudge, number: int) -> Sample:
    """One conversation, first answer and repairs, all with temperature."""
    opening = implementer_prompt(brief)
    messages: tuple[Message, ...] = opening
    tokens, findings = 0, [""]
    for round_ in range(settings.rounds + 1):
        request = ChatRequest(
            model=settings.model or "",
            messages=messages,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            seed=number,
            sample=number,
            tools=(WRITE_FILE,) if settings.tools else (),
        )
        reply = await client.ask(request, Purpose(role="implementer", subject=brief.contract.id, round=round_))
        tokens += reply.usage.total
        answer = read_answer(reply, brief.contract.units)
        findings = list(answer.complaints or await judge(brief, answer.code))
        if not findings:
            return Sample(contract=brief.contract.id, sample=number, passed_at=round_, rounds=round_, tokens=tokens)
        spoken = Message(role="assistant", content=said(reply))
        messages = (*opening, spoken, feedback_prompt(brief, bounded(findings)))
    return Sample(
        contract=brief.contract.id,
        sample=number,
        passed_at=None,
        rounds=settings.rounds,
        tokens=tokens,
        finding=findings[0][:300],
    )


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
