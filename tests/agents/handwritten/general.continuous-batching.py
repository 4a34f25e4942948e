"""Who computes what in the next step."""

from collections import deque
from dataclasses import dataclass

from .units import BlockManager, FinishReason, Sequence


@dataclass(slots=True)
class Chunk:
    """Tokens start to start + length of a sequence."""

    seq: Sequence
    start: int
    length: int

    @property
    def samples(self) -> bool:
        """Whether its last logits choose the next token."""
        return self.start + self.length == self.seq.num_tokens


class Scheduler:
    """Decodes first, then prompts in chunks, then whoever came first of those that wait."""

    def __init__(self, block_manager: BlockManager, max_concurrency: int, token_budget: int) -> None:
        if not 1 <= max_concurrency <= token_budget:
            raise ValueError(
                f"max_concurrency: at least 1 and at most the {token_budget} tokens of a step, not {max_concurrency}"
            )
        self.block_manager = block_manager
        self.max_concurrency = max_concurrency
        self.token_budget = token_budget
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence behind all others."""
        self.waiting.append(seq)

    def schedule(self) -> list[Chunk]:
        """The chunks of the next step, their blocks allocated."""
        chunks = [self._chunk(seq, 1) for seq in self.running if seq.num_generated]
        budget = self.token_budget - len(chunks)
        for seq in self.running:
            left = min(seq.num_tokens - seq.num_computed_tokens, budget)
            if left > 0 and not seq.num_generated:
                chunks.append(self._chunk(seq, left))
                budget -= left
        while budget > 0 and self.waiting and len(self.running) < self.max_concurrency:
            head = self.waiting[0]
            if not self.block_manager.admit(head):
                break
            self.running.append(self.waiting.popleft())
            length = min(head.num_tokens - head.num_computed_tokens, budget)
            chunks.append(self._chunk(head, length))
            budget -= length
        return chunks

    def advance(self, chunks: list[Chunk]) -> None:
        """Count what the step computed, and make its full blocks known."""
        for chunk in chunks:
            chunk.seq.num_computed_tokens += chunk.length
            self.block_manager.commit(chunk.seq)

    def finish(self, seq: Sequence) -> None:
        """Take a running sequence off."""
        self.running.remove(seq)
        self.block_manager.free(seq)

    def abort(self, seq_id: int) -> Sequence | None:
        """Take a sequence off, wherever it is; None if it is not here."""
        for place in (self.running, self.waiting):
            for seq in place:
                if seq.seq_id == seq_id:
                    place.remove(seq)
                    self.block_manager.free(seq)
                    seq.finish_reason = FinishReason.ABORT
                    return seq
        return None

    def _chunk(self, seq: Sequence, length: int) -> Chunk:
        start = seq.num_computed_tokens
        self.block_manager.allocate(seq, start + length)
        return Chunk(seq, start, length)
