"""What the next step computes: decodes first, then prefill chunks in what is left of the budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .block_manager import BlockManager
from .sequence import FinishReason, Sequence


@dataclass(slots=True)
class Chunk:
    """Tokens `start` to `start + length` of a sequence, to be computed in one step."""

    seq: Sequence
    start: int
    length: int

    @property
    def samples(self) -> bool:
        """Whether the chunk ends at the sequence's last token, whose logits choose the next."""
        return self.start + self.length == self.seq.num_tokens


class Scheduler:
    """Serves first what came first: `max_concurrency` sequences run, `token_budget` tokens a step.

    The budget has a token for each running sequence: decodes never wait, the oldest prompt always
    gets on.
    """

    def __init__(self, block_manager: BlockManager, max_concurrency: int, token_budget: int) -> None:
        if not 1 <= max_concurrency <= token_budget:
            raise ValueError(f"max_concurrency: {max_concurrency} is not from 1 to {token_budget}")
        self.block_manager = block_manager
        self.max_concurrency = max_concurrency
        self.token_budget = token_budget
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step, with blocks allocated for them."""
        chunks: list[Chunk] = []
        budget = self.token_budget
        for seq in self._in_order():
            length = min(seq.num_tokens - seq.num_computed_tokens, budget)
            chunks.append(Chunk(seq, seq.num_computed_tokens, length))
            self.block_manager.allocate(seq, seq.num_computed_tokens + length)
            budget -= length
            if budget == 0:  # and not after the next admission: later, it may find more cached
                break
        return chunks

    def advance(self, chunks: list[Chunk]) -> None:
        """Note that `chunks` are computed; their full blocks become known to later prompts."""
        for chunk in chunks:
            chunk.seq.num_computed_tokens += chunk.length
            self.block_manager.commit(chunk.seq)

    def finish(self, seq: Sequence) -> None:
        """Take a running sequence off, whatever the reason, and give its blocks back."""
        self.running.remove(seq)
        self.block_manager.free(seq)

    def abort(self, seq_id: int) -> Sequence | None:
        """Take the sequence off wherever it is; None if it is not here (any more)."""
        for seq in (*self.running, *self.waiting):
            if seq.seq_id == seq_id:
                seq.finish_reason = FinishReason.ABORT
                if seq in self.running:
                    self.finish(seq)
                else:
                    self.waiting.remove(seq)
                return seq
        return None

    def _in_order(self) -> Iterator[Sequence]:
        """Who runs, then who waits, admitted as asked for.

        The next is admitted only once all prompts before it fit the step, so whoever still is at
        its prompt runs last, after all decodes.
        """
        yield from list(self.running)
        while self.waiting and len(self.running) < self.max_concurrency:
            if not self.block_manager.admit(self.waiting[0]):
                return  # nobody overtakes
            self.running.append(self.waiting.popleft())
            yield self.running[-1]
