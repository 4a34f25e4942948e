"""Who has which block, and what is promised to whom."""

import hashlib
import math
import struct
from collections import OrderedDict, deque
from dataclasses import dataclass

from .units import Sequence


@dataclass(slots=True)
class _Block:
    """One block of the cache: the tables that hold it, and the hash by which it is known, if it is."""

    number: int
    readers: int = 0
    digest: bytes | None = None


class BlockManager:
    """num_blocks blocks of block_size tokens, each of them free, cached or used."""

    num_blocks: int
    block_size: int

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._blocks = [_Block(number) for number in range(num_blocks)]
        self._empty = deque(self._blocks)
        self._known: dict[bytes, _Block] = {}
        self._unread: OrderedDict[int, _Block] = OrderedDict()
        """Known blocks in no table by their number, the least recently used first."""
        self._limits: dict[int, int] = {}
        """How long each admitted sequence's table may become."""
        self._owed = 0
        """Blocks promised and not yet taken, of all sequences together."""

    @property
    def num_free(self) -> int:
        """Blocks with nothing in them."""
        return len(self._empty)

    @property
    def num_cached(self) -> int:
        """Blocks that hold a known prefix and are in nobody's table."""
        return len(self._unread)

    @property
    def num_used(self) -> int:
        """Distinct blocks in tables."""
        return sum(block.readers > 0 for block in self._blocks)

    def admit(self, seq: Sequence) -> bool:
        """Give seq its known prefix and promise it all that it can need; False, and nothing changes, without room."""
        most = math.ceil((seq.num_prompt_tokens + seq.params.max_tokens) / self.block_size)
        prefix: list[tuple[bytes, _Block]] = []
        previous = b""
        while len(prefix) < (seq.num_prompt_tokens - 1) // self.block_size:
            previous = self._chain(previous, seq, len(prefix))
            known = self._known.get(previous)
            if known is None:
                break
            prefix.append((previous, known))
        room = self.num_free + self.num_cached - sum(block.readers == 0 for _, block in prefix)
        if self._owed + most - len(prefix) > room:
            return False
        for _, block in prefix:
            self._unread.pop(block.number, None)
            block.readers += 1
        self._limits[seq.seq_id] = most
        self._owed += most - len(prefix)
        seq.block_table = [block.number for _, block in prefix]
        seq.block_hashes = [digest for digest, _ in prefix]
        seq.num_computed_tokens = seq.num_cached_tokens = self.block_size * len(prefix)
        return True

    def allocate(self, seq: Sequence, num_tokens: int) -> None:
        """Make room for num_tokens in seq's table. RuntimeError beyond what was promised."""
        wanted, limit = math.ceil(num_tokens / self.block_size), self._limits.get(seq.seq_id, 0)
        if wanted > limit:
            raise RuntimeError(f"sequence {seq.seq_id} needs {wanted} blocks, and was promised {limit}")
        for _ in range(wanted - len(seq.block_table)):
            if not self._empty:
                self._forget_oldest()
            block = self._empty.popleft()
            block.readers = 1
            self._owed -= 1
            seq.block_table.append(block.number)

    def commit(self, seq: Sequence) -> None:
        """Make seq's blocks that are full of computed tokens known, unless equal ones are."""
        while len(seq.block_hashes) < seq.num_computed_tokens // self.block_size:
            place = len(seq.block_hashes)
            digest = self._chain(b"".join(seq.block_hashes[-1:]), seq, place)
            seq.block_hashes.append(digest)
            block = self._blocks[seq.block_table[place]]
            if self._known.setdefault(digest, block) is block:
                block.digest = digest

    def free(self, seq: Sequence) -> None:
        """Take back seq's blocks, the last first, and what is left of its promise."""
        self._owed -= self._limits.pop(seq.seq_id, len(seq.block_table)) - len(seq.block_table)
        for block in [self._blocks[number] for number in seq.block_table[::-1]]:
            block.readers -= 1
            if block.readers == 0 and block.digest is not None:
                self._unread[block.number] = block
            elif block.readers == 0:
                self._empty.append(block)
        seq.block_table = []

    def _forget_oldest(self) -> None:
        _, block = self._unread.popitem(last=False)
        if block.digest is not None:
            del self._known[block.digest]
        block.digest = None
        self._empty.append(block)

    def _chain(self, previous: bytes, seq: Sequence, place: int) -> bytes:
        """Hash of all tokens from the very beginning to the end of the block at `place`."""
        tokens = seq.token_ids[place * self.block_size :][: self.block_size]
        return hashlib.sha256(previous + struct.pack(f"={len(tokens)}q", *tokens)).digest()
