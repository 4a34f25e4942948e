"""Which block of the paged KV cache belongs to whom."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict

from .sequence import Sequence


class BlockManager:
    """Hands out blocks of `block_size` tokens and remembers full ones by what they hold.

    A block is free, cached (full, known by its hash, used by nobody) or used. A sequence is admitted
    only with a promise of all blocks it may ever need: none that runs has to be preempted.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks))[::-1]  # a stack
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._users: dict[int, int] = {}  # block -> how many sequences use it
        self._promised: dict[int, int] = {}  # seq_id -> blocks it may still take
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return len(self._users)

    def admit(self, seq: Sequence) -> bool:
        """Promise `seq` its worst case and give it the known blocks of its prompt, or do nothing."""
        hashes = self._known_prefix(seq)
        hits = [self._block_of[known] for known in hashes]
        needed = -(-(seq.num_prompt_tokens + seq.params.max_tokens) // self.block_size) - len(hits)
        revived = sum(block in self._cached for block in hits)
        if needed > len(self._free) + len(self._cached) - revived - sum(self._promised.values()):
            return False
        for block in hits:
            self._cached.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        self._promised[seq.seq_id] = needed
        seq.block_table = hits
        seq.block_hashes = hashes
        seq.num_cached_tokens = seq.num_computed_tokens = len(hits) * self.block_size
        return True

    def allocate(self, seq: Sequence, num_tokens: int) -> None:
        """Grow `seq.block_table` until it has room for `num_tokens` tokens."""
        while len(seq.block_table) * self.block_size < num_tokens:
            if self._promised[seq.seq_id] == 0:
                raise RuntimeError(f"sequence {seq.seq_id} needs more blocks than it was promised")
            self._promised[seq.seq_id] -= 1
            block = self._free.pop() if self._free else self._evict()
            self._users[block] = 1
            seq.block_table.append(block)

    def commit(self, seq: Sequence) -> None:
        """Make the blocks of `seq` that are full and computed known to later prompts."""
        for index in range(len(seq.block_hashes), seq.num_computed_tokens // self.block_size):
            parent = seq.block_hashes[-1] if seq.block_hashes else b""
            block_hash = self._hash(parent, seq, index)
            seq.block_hashes.append(block_hash)
            if block_hash not in self._block_of:  # a twin of one that is known stays unknown
                self._block_of[block_hash] = seq.block_table[index]
                self._hash_of[seq.block_table[index]] = block_hash

    def free(self, seq: Sequence) -> None:
        """Take back all blocks of `seq`; known ones stay cached until their room is needed."""
        self._promised.pop(seq.seq_id, None)
        for block in reversed(seq.block_table):  # a prompt's end is evicted before its beginning
            self._users[block] -= 1
            if self._users[block] == 0:
                del self._users[block]
                if block in self._hash_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)
        seq.block_table = []

    def _known_prefix(self, seq: Sequence) -> list[bytes]:
        """Hashes of the leading blocks that are known; the last prompt token is always computed."""
        hashes: list[bytes] = []
        for index in range((seq.num_prompt_tokens - 1) // self.block_size):
            block_hash = self._hash(hashes[-1] if hashes else b"", seq, index)
            if block_hash not in self._block_of:
                break
            hashes.append(block_hash)
        return hashes

    def _hash(self, parent: bytes, seq: Sequence, index: int) -> bytes:
        """SHA-256 over the parent's hash and the block's tokens: over all up to the block's end."""
        tokens = seq.token_ids[index * self.block_size : (index + 1) * self.block_size]
        return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        return block
