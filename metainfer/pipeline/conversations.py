"""What a model did in a run: calls, tokens, cost and time of each role, and when each call was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from metainfer.agents.budget import read_ledger
from metainfer.agents.transcript import Turn, read_transcript

_BAR = 30
"""Characters of a call's bar; the whole of them is the time from the first call to the end of the last."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RoleSum(_Model):
    """All calls of one role."""

    role: str
    calls: int
    kept: int
    """Answered by a reply that was paid for earlier."""
    failed: int
    tokens: int
    """Of this run's answers, prompts included; those kept from earlier too."""
    seconds: float
    """Of waiting; calls at once count each."""
    cost_usd: float
    """Of all calls for these inputs, in this run and in others that share their budget."""


class Call(_Model):
    """One call."""

    role: str
    subject: str
    round: int
    sample: int
    began_s: float | None
    """After the first call of the run; None where the transcript does not say."""
    seconds: float
    tokens: int
    said: str
    """How it ended."""


class Conversations(_Model):
    """All calls of one run, in the order in which they ended."""

    roles: list[RoleSum]
    calls: list[Call]
    wall_s: float | None
    """From the first call to the end of the last one."""


def read_conversations(transcript: Path, ledger: Path) -> Conversations:
    """What the transcript of a run says, with the costs of the ledger of its inputs, if there is one."""
    turns = list(read_transcript(transcript))
    ends = [turn.ended for turn in turns if turn.ended is not None]
    begins = [turn.ended - turn.seconds for turn in turns if turn.ended is not None]
    first = min(begins, default=0.0)
    costs: dict[str, float] = {}
    for entry in {entry.call: entry for entry in read_ledger(ledger)}.values():
        costs[entry.purpose.role] = costs.get(entry.purpose.role, 0.0) + entry.usd
    names = dict.fromkeys([*(turn.purpose.role for turn in turns), *costs])
    return Conversations(
        roles=[_sum(name, [turn for turn in turns if turn.purpose.role == name], costs) for name in names],
        calls=[_call(turn, first) for turn in turns],
        wall_s=round(max(ends) - first, 3) if ends else None,
    )


def told(conversations: Conversations) -> Iterator[str]:
    """The same for people: a line per role, the sum, then a line per call with its place in time."""
    roles = conversations.roles
    yield f"  {'role':14} {'calls':>5} {'kept':>5} {'failed':>6} {'tokens':>9} {'waiting':>9} {'cost':>12}"
    for one in (*roles, _all(roles)):
        yield (
            f"  {one.role:14} {one.calls:5d} {one.kept:5d} {one.failed:6d} {one.tokens:9,d} {one.seconds:7.1f} s "
            f"{one.cost_usd:8.4f} USD"
        )
    yield "  cost is that of all runs of these inputs; they share one budget"
    for call in conversations.calls:
        when = "" if call.began_s is None else f"{call.began_s:7.1f} s [{_bar(call, conversations.wall_s or 0.0)}] "
        yield (
            f"  {when}{call.role} {call.subject} round {call.round} sample {call.sample}: "
            f"{call.tokens:,} tokens, {call.seconds:.1f} s, {call.said}"
        )


def _sum(role: str, turns: Sequence[Turn], costs: dict[str, float]) -> RoleSum:
    return RoleSum(
        role=role,
        calls=len(turns),
        kept=sum(turn.from_store for turn in turns),
        failed=sum(turn.reply is None for turn in turns),
        tokens=sum(turn.reply.usage.total for turn in turns if turn.reply),
        seconds=round(sum(turn.seconds for turn in turns), 3),
        cost_usd=round(costs.get(role, 0.0), 6),
    )


def _all(roles: Sequence[RoleSum]) -> RoleSum:
    return RoleSum(
        role="all",
        calls=sum(one.calls for one in roles),
        kept=sum(one.kept for one in roles),
        failed=sum(one.failed for one in roles),
        tokens=sum(one.tokens for one in roles),
        seconds=sum(one.seconds for one in roles),
        cost_usd=sum(one.cost_usd for one in roles),
    )


def _call(turn: Turn, first: float) -> Call:
    ended = "kept from earlier" if turn.from_store else turn.reply.finish_reason if turn.reply else turn.error[:80]
    return Call(
        role=turn.purpose.role,
        subject=turn.purpose.subject,
        round=turn.purpose.round,
        sample=turn.request.sample,
        began_s=None if turn.ended is None else round(max(0.0, turn.ended - turn.seconds - first), 3),
        seconds=turn.seconds,
        tokens=turn.reply.usage.total if turn.reply else 0,
        said=ended,
    )


def _bar(call: Call, wall_s: float) -> str:
    """When a call was, at least one mark wide."""
    scale = _BAR / wall_s if wall_s > 0 else 0.0
    begin = min(int((call.began_s or 0.0) * scale), _BAR - 1)
    end = min(max(int(((call.began_s or 0.0) + call.seconds) * scale), begin + 1), _BAR)
    return "." * begin + "#" * (end - begin) + "." * (_BAR - end)
