"""The block manager against a plain model: a dictionary that says what every slot of the cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from metainfer.ckb.checks import Candidate, Finding


class _Cache:
    """A candidate's block manager, the sequences that live in it, and what a real cache would hold."""

    def __init__(self, c: Candidate, num_blocks: int, block_size: int) -> None:
        self.c = c
        self.size = block_size
        self.total = num_blocks
        self.manager = c.unit("BlockManager")(num_blocks, block_size)
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}  # (block, offset) -> all tokens up to there
        self.live: list[Any] = []
        self.made = 0

    def new(self, prompt: list[int], max_tokens: int) -> Any:
        self.made += 1
        return self.c.unit("Sequence")(self.made, prompt, self.c.unit("SamplingParams")(max_tokens=max_tokens))

    def admit(self, seq: Any) -> bool:
        if not self.manager.admit(seq):
            return False
        self.live.append(seq)
        return True

    def compute(self, seq: Any, count: int, *, committed: bool = True) -> None:
        """What a step does: room for the tokens, their keys and values, then the bookkeeping."""
        end = seq.num_computed_tokens + count
        self.manager.allocate(seq, end)
        for position in range(seq.num_computed_tokens, end):
            slot = seq.block_table[position // self.size], position % self.size
            self.slots[slot] = tuple(seq.token_ids[: position + 1]) if committed else ()
        if committed:
            seq.num_computed_tokens = end
            self.manager.commit(seq)

    def free(self, seq: Any) -> None:
        self.live.remove(seq)
        self.manager.free(seq)

    def promised(self) -> int:
        return sum(self.worst(seq) - len(seq.block_table) for seq in self.live)

    def worst(self, seq: Any) -> int:
        return -(-(seq.num_prompt_tokens + seq.params.max_tokens) // self.size)

    def complaints(self) -> Iterator[str]:
        """Every rule that does not hold right now."""
        free, cached, used = self.manager.num_free, self.manager.num_cached, self.manager.num_used
        if min(free, cached, used) < 0 or free + cached + used != self.total:
            yield f"free {free} + cached {cached} + used {used} is not {self.total}"
        if self.promised() > free + cached:
            yield f"{self.promised()} blocks are promised, and only {free + cached} are there"
        if used != len({block for seq in self.live for block in seq.block_table}):
            yield f"{used} blocks count as used, other than those in the block tables"
        for seq in self.live:
            if len(set(seq.block_table)) < len(seq.block_table):
                yield "a sequence has a block twice"
            for position in range(seq.num_computed_tokens):
                slot = seq.block_table[position // self.size], position % self.size
                if self.slots.get(slot) != tuple(seq.token_ids[: position + 1]):
                    yield f"position {position} of a sequence reads keys and values of other tokens"
                    break
            mine = seq.block_table[seq.num_computed_tokens // self.size :]
            if any(block in other.block_table for other in self.live if other is not seq for block in mine):
                yield "two sequences write into the same block"


def check_random_life(c: Candidate) -> Iterator[Finding]:
    """Requests over a tiny alphabet come, grow, end and are cut off, in a cache that is far too small."""
    for _ in range(12):
        cache = _Cache(c, c.rng.randint(4, 14), c.rng.randint(1, 4))
        for step in range(120):
            _random_event(c, cache)
            for complaint in cache.complaints():
                yield Finding("check_random_life", f"after {step + 1} events: {complaint}", {"block_size": cache.size})
                return
        for seq in list(cache.live):
            cache.free(seq)
        if cache.manager.num_used or cache.manager.num_free + cache.manager.num_cached != cache.total:
            yield Finding("check_random_life", "blocks are missing when nobody is left")


def _random_event(c: Candidate, cache: _Cache) -> None:
    event = c.rng.random()
    if event < 0.35:
        seq = cache.new([c.rng.randrange(2) for _ in range(c.rng.randint(1, 14))], c.rng.randint(1, 8))
        room = cache.manager.num_free + cache.manager.num_cached - cache.promised()
        admitted = cache.admit(seq)
        if not admitted and cache.worst(seq) <= room:
            raise AssertionError(f"{cache.worst(seq)} blocks are refused though {room} are neither used nor promised")
        if admitted and not seq.num_cached_tokens == seq.num_computed_tokens == len(seq.block_table) * cache.size:
            raise AssertionError("cached tokens, computed tokens and block table disagree after admission")
        if admitted and seq.num_computed_tokens >= seq.num_prompt_tokens:
            raise AssertionError("nothing of the prompt is left to compute, so there are no logits to sample from")
        return
    if not cache.live:
        return
    seq = c.rng.choice(cache.live)
    left = seq.num_tokens - seq.num_computed_tokens
    if event < 0.42:
        cache.free(seq)  # aborted, perhaps with a half-filled block
    elif event < 0.47 and left:
        cache.compute(seq, c.rng.randint(1, left), committed=False)  # the step failed
        cache.free(seq)
    elif left:
        cache.compute(seq, c.rng.randint(1, left))
    elif seq.num_generated < seq.params.max_tokens:
        seq.token_ids.append(c.rng.randrange(2))  # every promise is called in, to the last token
    else:
        cache.free(seq)


def check_prefix_is_found_again(c: Candidate) -> Iterator[Finding]:
    """A prompt that was computed before is found up to its last full block, short of its last token."""
    for _ in range(10):
        size = c.rng.randint(1, 8)
        cache = _Cache(c, 64, size)
        prompt = [c.rng.randrange(1000) for _ in range(c.rng.randint(1, 40))]
        first = cache.new(prompt, 4)
        cache.admit(first)
        cache.compute(first, len(prompt))
        second = cache.new(prompt, 4)  # while the first still runs
        cache.admit(second)
        cache.free(first)
        cache.free(second)
        third = cache.new(prompt, 4)
        cache.admit(third)
        expected = (len(prompt) - 1) // size * size
        for name, seq in (("a running", second), ("an ended", third)):
            if seq.num_cached_tokens != expected:
                yield Finding(
                    "check_prefix_is_found_again",
                    f"the prompt of {name} sequence is found to {seq.num_cached_tokens} tokens, not {expected}",
                    {"prompt_tokens": len(prompt), "block_size": size},
                )


def check_a_hit_is_no_room(c: Candidate) -> Iterator[Finding]:
    """A cached block that the prompt uses cannot be evicted for the same prompt."""
    size = c.rng.randint(2, 5)
    cache = _Cache(c, 4, size)
    prompt = [c.rng.randrange(1000) for _ in range(3 * size + 1)]
    first, other, again = cache.new(prompt, 1), cache.new([1], 1), cache.new(prompt, 1)
    cache.admit(first)
    cache.compute(first, len(prompt))
    cache.free(first)  # three blocks are cached, one is free
    cache.admit(other)
    cache.compute(other, 1)  # none is free
    if cache.admit(again):
        yield Finding("check_a_hit_is_no_room", "three hits and a fourth block are promised of three that are there")
    cache.free(other)
    if not cache.admit(again) or again.num_cached_tokens != 3 * size:
        yield Finding("check_a_hit_is_no_room", "with a free block the prompt is not admitted with its three hits")


def check_least_recently_used_goes_first(c: Candidate) -> Iterator[Finding]:
    """Of two cached prompts the one used longer ago is evicted, and its end before its beginning."""
    size = c.rng.randint(2, 5)
    cache = _Cache(c, 8, size)
    old, new = ([base + n for n in range(3 * size + 1)] for base in (100, 500))

    def run(prompt: list[int]) -> int:
        seq = cache.new(prompt, 1)
        cache.admit(seq)
        found = int(seq.num_cached_tokens)
        cache.compute(seq, len(prompt) - found)
        cache.free(seq)
        return found

    run(new)
    run(old)
    run(new)  # now `old` is the one used longer ago; both have 3 blocks cached
    run([c.rng.randrange(1000, 2000) for _ in range(3 * size)])  # 3 blocks: 2 are free, 1 must be evicted
    probe = cache.new(new, 1)
    cache.admit(probe)
    if probe.num_cached_tokens != 3 * size:
        yield Finding("check_least_recently_used_goes_first", f"{probe.num_cached_tokens} tokens of the newer are left")
    cache.free(probe)
    probe = cache.new(old, 1)
    cache.admit(probe)
    if probe.num_cached_tokens != 2 * size:
        yield Finding(
            "check_least_recently_used_goes_first",
            f"{probe.num_cached_tokens} tokens of the older are left, not its first two blocks of {size}",
        )
