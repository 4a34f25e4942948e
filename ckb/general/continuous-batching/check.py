"""The scheduler against the rules of continuous batching, over random requests, aborts and tiny caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from metainfer.ckb.checks import Candidate, Finding


def _new_scheduler(c: Candidate, num_blocks: int, concurrency: int, budget: int) -> Any:
    return c.unit("Scheduler")(c.unit("BlockManager")(num_blocks, 4), concurrency, budget)


def _new_sequence(c: Candidate, seq_id: int, prompt_tokens: int, max_tokens: int) -> Any:
    prompt = [c.rng.randrange(3) for _ in range(prompt_tokens)]
    return c.unit("Sequence")(seq_id, prompt, c.unit("SamplingParams")(max_tokens=max_tokens))


def _complaints(scheduler: Any, chunks: list[Any], running_before: list[Any]) -> Iterator[str]:
    """Every rule that this step breaks; called between schedule and advance."""
    if sum(chunk.length for chunk in chunks) > scheduler.token_budget:
        yield "the chunks exceed the token budget"
    if len(scheduler.running) > scheduler.max_concurrency:
        yield f"{len(scheduler.running)} sequences run, {scheduler.max_concurrency} may"
    if len({chunk.seq.seq_id for chunk in chunks}) < len(chunks):
        yield "a sequence has two chunks in one step"
    for chunk in chunks:
        seq = chunk.seq
        if chunk.start != seq.num_computed_tokens or chunk.length < 1 or chunk.start + chunk.length > seq.num_tokens:
            yield f"chunk {chunk.start}+{chunk.length} of a sequence computed to {seq.num_computed_tokens}"
        if len(seq.block_table) * 4 < chunk.start + chunk.length:
            yield "a chunk has no room in its blocks"
        if chunk.samples != (chunk.start + chunk.length == seq.num_tokens):
            yield "samples is true of a chunk that does not end at the last token, or false of one that does"
    decodes = [seq for seq in running_before if seq.num_generated]
    if [chunk.seq for chunk in chunks[: len(decodes)]] != decodes:
        yield "the decodes are not all there, first and in order"
    prefills = chunks[len(decodes) :]
    order = [chunk.seq.seq_id for chunk in prefills]
    if order != sorted(order):
        yield f"prompts are computed in the order {order}, not as they came"
    if any(not chunk.samples for chunk in prefills[:-1]):
        yield "a prompt is cut although another follows in the same step"
    left = scheduler.token_budget - sum(chunk.length for chunk in chunks)
    idle = [seq for seq in scheduler.running if seq not in [chunk.seq for chunk in chunks]]
    if left and (idle or any(not chunk.samples for chunk in chunks)):
        yield f"{left} tokens of the budget are left although there is work for them"
    if left and scheduler.waiting and len(scheduler.running) < scheduler.max_concurrency:
        head = scheduler.waiting[0]
        worst = -(-(head.num_prompt_tokens + head.params.max_tokens) // 4)
        manager = scheduler.block_manager
        promised = sum(
            -(-(seq.num_prompt_tokens + seq.params.max_tokens) // 4) - len(seq.block_table) for seq in scheduler.running
        )
        if worst <= manager.num_free + manager.num_cached - promised:
            yield "a request waits although there are a place, budget and blocks for it"


def check_random_traffic(c: Candidate) -> Iterator[Finding]:
    """Requests of all sizes come and go; every step obeys the rules, and everyone is served in the end."""
    for _ in range(8):
        concurrency = c.rng.randint(1, 5)
        scheduler = _new_scheduler(c, c.rng.randint(12, 30), concurrency, concurrency + c.rng.randint(0, 12))
        arrivals = [_new_sequence(c, i, c.rng.randint(1, 30), c.rng.randint(1, 12)) for i in range(25)]
        admitted: list[int] = []
        ended: set[int] = set()
        expected_end = len(arrivals)
        for _step in range(2000):
            while arrivals and c.rng.random() < 0.4:
                scheduler.add(arrivals.pop(0))
            if c.rng.random() < 0.05 and (scheduler.running or scheduler.waiting):
                victim = c.rng.choice([*scheduler.running, *scheduler.waiting])
                seq = scheduler.abort(victim.seq_id)
                if seq is not victim or seq.finish_reason != "abort" or scheduler.abort(victim.seq_id) is not None:
                    yield Finding("check_random_traffic", "abort does not return the sequence once, marked as aborted")
                ended.add(victim.seq_id)
            running_before = list(scheduler.running)
            chunks = scheduler.schedule()
            admitted += [seq.seq_id for seq in scheduler.running if seq not in running_before]
            for complaint in _complaints(scheduler, chunks, running_before):
                yield Finding("check_random_traffic", complaint, {"budget": scheduler.token_budget})
                return
            if scheduler.has_work and not chunks:
                yield Finding("check_random_traffic", "there is work, and the step computes nothing")
                return
            _finish_step(c, scheduler, chunks, ended)
            if not arrivals and not scheduler.has_work:
                break
        if admitted != sorted(admitted):
            yield Finding("check_random_traffic", f"requests are admitted in the order {admitted}")
        if len(ended) != expected_end:
            yield Finding("check_random_traffic", f"{expected_end - len(ended)} requests never end")
        if scheduler.block_manager.num_used:
            yield Finding("check_random_traffic", f"idle, and {scheduler.block_manager.num_used} blocks are in use")


def _finish_step(c: Candidate, scheduler: Any, chunks: list[Any], ended: set[int]) -> None:
    sampling = [chunk.seq for chunk in chunks if chunk.samples]
    ends = {chunk.seq.seq_id: chunk.start + chunk.length for chunk in chunks}
    scheduler.advance(chunks)
    for chunk in chunks:
        if chunk.seq.num_computed_tokens != ends[chunk.seq.seq_id]:
            raise AssertionError("advance does not move num_computed_tokens to the end of the chunk")
    for seq in sampling:
        seq.token_ids.append(c.rng.randrange(3))
        if seq.num_generated == seq.params.max_tokens:
            scheduler.finish(seq)
            ended.add(seq.seq_id)


def check_decodes_never_wait(c: Candidate) -> Iterator[Finding]:
    """A prompt of many chunks arrives while others decode: each of them still gets a token in every step."""
    scheduler = _new_scheduler(c, 200, 4, 8)
    others = [_new_sequence(c, i, 2, 60) for i in range(3)]
    for seq in others:
        scheduler.add(seq)
    _finish_step(c, scheduler, scheduler.schedule(), set())
    scheduler.add(_new_sequence(c, 9, c.rng.randint(90, 120), 2))
    for _ in range(18):
        before = [seq.num_generated for seq in others]
        chunks = scheduler.schedule()
        if sum(chunk.length for chunk in chunks) != 8:
            yield Finding("check_decodes_never_wait", "the prompt does not fill what the decodes leave of the step")
        _finish_step(c, scheduler, chunks, set())
        if [seq.num_generated for seq in others] != [count + 1 for count in before]:
            yield Finding("check_decodes_never_wait", "a decode waits for somebody's prompt")
            return


def check_computed_blocks_are_shared(c: Candidate) -> Iterator[Finding]:
    """Once a prompt is computed, the same prompt finds it, even if it arrived at the same time but had to wait."""
    scheduler = _new_scheduler(c, 100, 2, 16)
    first, second = _new_sequence(c, 0, 33, 2), _new_sequence(c, 1, 1, 2)
    second = c.unit("Sequence")(1, first.token_ids, second.params)
    for seq in (first, second):
        scheduler.add(seq)
    while scheduler.has_work:
        _finish_step(c, scheduler, scheduler.schedule(), set())
    if second.num_cached_tokens != 32:
        yield Finding(
            "check_computed_blocks_are_shared",
            f"{second.num_cached_tokens} of the 32 tokens that the first request computed are found by the second",
        )


def check_refuses_a_budget_below_concurrency(c: Candidate) -> Iterator[Finding]:
    """With fewer tokens a step than sequences, somebody would starve."""
    for concurrency, budget in ((0, 4), (5, 4), (-1, 4)):
        try:
            _new_scheduler(c, 8, concurrency, budget)
        except ValueError:
            continue
        message = f"concurrency {concurrency} with a budget of {budget} is accepted"
        yield Finding("check_refuses_a_budget_below_concurrency", message)
