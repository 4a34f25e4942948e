"""Who has which block, and what is promised to whom."""

import hashlib
import math
from array import array
from collections import OrderedDict

from .units import Sequence


class BlockManager:
    """num_blocks blocks of block_size tokens, each of them free, cached or used."""

    num_blocks: int
    block_size: int

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._readers = [0] * num_blocks  # tables that hold the block
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._promised: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks with nothing in them."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that hold a known prefix and are in nobody's table."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Distinct blocks in tables."""
        return self.num_blocks - len(self._free) - len(self._cached)

    def admit(self, seq: Sequence) -> bool:
        """Give seq its known prefix and promise it all that it can need; False, and nothing changes, without room."""
        hashes = self._known_prefix(seq)
        hits = [self._block_of[digest] for digest in hashes]
        needed = math.ceil((seq.num_prompt_tokens + seq.params.max_tokens) / self.block_size) - len(hits)
        revived = sum(block in self._cached for block in hits)
        if needed > len(self._free) + len(self._cached) - revived - sum(self._promised.values()):
            return False
        for block in hits:
            self._cached.pop(block, None)
            self._readers[block] += 1
        seq.block_table = hits
        seq.block_hashes = hashes
        seq.num_cached_tokens = seq.num_computed_tokens = len(hits) * self.block_size
        self._promised[seq.seq_id] = needed
        return True

    def allocate(self, seq: Sequence, num_tokens: int) -> None:
        """Make room for num_tokens in seq's table. RuntimeError beyond what was promised."""
        count = math.ceil(num_tokens / self.block_size) - len(seq.block_table)
        if count <= 0:
            return
        left = self._promised.get(seq.seq_id, 0) - count
        if left < 0:
            raise RuntimeError(f"sequence {seq.seq_id} needs {count} blocks, {-left} more than it was promised")
        self._promised[seq.seq_id] = left
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._readers[block] = 1
            seq.block_table.append(block)

    def commit(self, seq: Sequence) -> None:
        """Make seq's blocks that are full of computed tokens known, unless equal ones are."""
        for i in range(len(seq.block_hashes), seq.num_computed_tokens // self.block_size):
            digest = self._digest(seq, i, seq.block_hashes[-1] if i else b"")
            seq.block_hashes.append(digest)
            if digest not in self._block_of:
                self._block_of[digest] = seq.block_table[i]
                self._hash_of[seq.block_table[i]] = digest

    def free(self, seq: Sequence) -> None:
        """Take back seq's blocks, the last first, and what is left of its promise."""
        self._promised.pop(seq.seq_id, None)
        while seq.block_table:
            block = seq.block_table.pop()
            self._readers[block] -= 1
            if self._readers[block]:
                continue
            if block in self._hash_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def _known_prefix(self, seq: Sequence) -> list[bytes]:
        """Hashes of the leading blocks of the prompt that are known. Its last token is never among them."""
        hashes: list[bytes] = []
        for i in range((seq.num_prompt_tokens - 1) // self.block_size):
            digest = self._digest(seq, i, hashes[-1] if hashes else b"")
            if digest not in self._block_of:
                break
            hashes.append(digest)
        return hashes

    def _digest(self, seq: Sequence, i: int, previous: bytes) -> bytes:
        tokens = seq.token_ids[i * self.block_size : (i + 1) * self.block_size]
        return hashlib.sha256(previous + array("q", tokens).tobytes()).digest()

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        return block
