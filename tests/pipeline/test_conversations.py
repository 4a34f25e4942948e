"""What a run's model did, by role and in time, from figures that a person can add up."""

from __future__ import annotations

from pathlib import Path

from metainfer.agents.budget import Ledger, Limits, Price, Purpose
from metainfer.agents.messages import ChatRequest, Message, Reply, Usage
from metainfer.agents.transcript import Turn
from metainfer.pipeline.conversations import read_conversations, told

REQUEST = ChatRequest(model="m", messages=(Message(role="user", content="?"),), max_tokens=10)
ROLES = {
    "planner": Purpose(role="planner", subject="tiny"),
    "implementer": Purpose(role="implementer", subject="family/rope", round=1),
}


def turn(role: str, ended: float | None, seconds: float, *, tokens: int = 0, kept: bool = False) -> Turn:
    usage = Usage(prompt_tokens=tokens, completion_tokens=0)
    reply = Reply(text="", finish_reason="stop", usage=usage, model="m") if tokens else None
    error = "" if tokens else "answers 500: no"
    purpose = ROLES[role]
    return Turn(
        purpose=purpose, request=REQUEST, reply=reply, error=error, from_store=kept, seconds=seconds, ended=ended
    )


def keep(folder: Path, *turns: Turn) -> Path:
    file = folder / "transcript.jsonl"
    file.write_text("".join(f"{one.model_dump_json()}\n" for one in turns), encoding="utf-8")
    return file


def spend(folder: Path, *roles: str) -> Path:
    ledger = Ledger(folder / "ledger.jsonl", Limits(), price=Price(input_usd=1e6, output_usd=0.0))
    for role in roles:
        ledger.settle(ledger.book(ROLES[role], 5, 5), Usage(prompt_tokens=2, completion_tokens=0), "stop")
    return ledger.file


def test_roles_are_summed_and_calls_placed_in_time(tmp_path: Path) -> None:
    transcript = keep(
        tmp_path,
        turn("planner", 1010.0, 10.0, tokens=100),
        turn("implementer", 1030.0, 15.0, tokens=30),
        turn("implementer", 1030.0, 0.0, tokens=7, kept=True),
        turn("implementer", 1040.0, 10.0),
    )
    read = read_conversations(transcript, spend(tmp_path, "planner", "implementer", "implementer"))
    planner, implementer = read.roles
    assert (planner.calls, planner.tokens, planner.seconds, planner.cost_usd) == (1, 100, 10.0, 2.0)
    assert (implementer.calls, implementer.kept, implementer.failed, implementer.tokens) == (3, 1, 1, 37)
    assert (implementer.seconds, implementer.cost_usd) == (25.0, 4.0)
    assert [call.began_s for call in read.calls] == [0.0, 15.0, 30.0, 30.0]
    assert read.wall_s == 40.0
    lines = list(told(read))
    assert lines[3].split() == ["all", "4", "1", "1", "137", "35.0", "s", "6.0000", "USD"]
    assert lines[5].startswith("      0.0 s [#######.......................] planner tiny round 0")
    assert lines[6].startswith("     15.0 s [...........###########........] implementer family/rope round 1")
    assert lines[8].endswith("0 tokens, 10.0 s, answers 500: no")


def test_a_transcript_without_times_and_a_run_without_a_ledger_are_told_too(tmp_path: Path) -> None:
    read = read_conversations(keep(tmp_path, turn("planner", None, 1.0, tokens=3)), tmp_path / "none.jsonl")
    assert read.wall_s is None
    assert list(told(read))[-1] == "  planner tiny round 0 sample 0: 3 tokens, 1.0 s, stop"
