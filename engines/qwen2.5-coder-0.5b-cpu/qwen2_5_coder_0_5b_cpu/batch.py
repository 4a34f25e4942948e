"""The flat tensors of one step."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from .scheduler import Chunk


@dataclass(frozen=True, slots=True)
class Batch:
    """All chunks of a step, one after the other; nothing is padded but the block tables."""

    token_ids: Tensor  # [tokens] int64
    positions: Tensor  # [tokens] int64, of each token in its own sequence
    slot_mapping: Tensor  # [tokens] int64, block * block_size + offset: where its key and value go
    block_tables: Tensor  # [seqs, max_blocks] int32, -1 behind a sequence's last block
    query_start: Tensor  # [seqs + 1] int32: sequence i owns tokens query_start[i] up to query_start[i + 1]
    context_lens: Tensor  # [seqs] int32, tokens in the cache once this chunk is written
    sample_rows: Tensor  # [samples] int64, the tokens whose logits are wanted


def prepare_batch(chunks: Many[Chunk], block_size: int) -> Batch:
    """Lay the chunks of one step out flat. Raises ValueError for none, or for one its blocks do not hold."""
    if not chunks:
        raise ValueError("a batch needs at least one chunk")
    for chunk in chunks:
        end = chunk.start + chunk.length
        if chunk.start < 0 or chunk.length < 1 or end > len(chunk.seq.token_ids):
            raise ValueError(f"a chunk of tokens {chunk.start}..{end} does not lie within its sequence")
        if end > len(chunk.seq.block_table) * block_size:
            raise ValueError(f"{end} tokens do not fit the {len(chunk.seq.block_table)} blocks of their sequence")
    ends = list(accumulate(chunk.length for chunk in chunks))
    context_lens = [chunk.start + chunk.length for chunk in chunks]
    tokens = [
        (k.seq, position) for k, stop in zip(chunks, context_lens, strict=True) for position in range(k.start, stop)
    ]
    slots = [seq.block_table[p // block_size] * block_size + p % block_size for seq, p in tokens]
    width = -(-max(context_lens) // block_size)
    tables = [(chunk.seq.block_table + [-1] * width)[:width] for chunk in chunks]
    sample_rows = [end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.samples]
    return Batch(
        token_ids=torch.tensor([seq.token_ids[p] for seq, p in tokens], dtype=torch.int64),
        positions=torch.tensor([p for _, p in tokens], dtype=torch.int64),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        query_start=torch.tensor([0, *ends], dtype=torch.int32),
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        sample_rows=torch.tensor(sample_rows, dtype=torch.int64),
    )
