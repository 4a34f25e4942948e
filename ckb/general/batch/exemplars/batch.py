"""The flat tensors of one step."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from .units import Chunk


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
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    query_start = [0]
    context_lens: list[int] = []
    sample_rows: list[int] = []
    for chunk in chunks:
        end = chunk.start + chunk.length
        table = chunk.seq.block_table
        if chunk.start < 0 or chunk.length < 1 or end > len(chunk.seq.token_ids):
            raise ValueError(f"a chunk of tokens {chunk.start}..{end} does not lie within its sequence")
        if end > len(table) * block_size:
            raise ValueError(f"{end} tokens do not fit the {len(table)} blocks of their sequence")
        token_ids += chunk.seq.token_ids[chunk.start : end]
        positions += range(chunk.start, end)
        slots += [table[p // block_size] * block_size + p % block_size for p in range(chunk.start, end)]
        query_start.append(len(token_ids))
        context_lens.append(end)
        if chunk.samples:
            sample_rows.append(len(token_ids) - 1)
    width = max(-(-length // block_size) for length in context_lens)
    tables = [chunk.seq.block_table[:width] for chunk in chunks]
    return Batch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        block_tables=torch.tensor([table + [-1] * (width - len(table)) for table in tables], dtype=torch.int32),
        query_start=torch.tensor(query_start, dtype=torch.int32),
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        sample_rows=torch.tensor(sample_rows, dtype=torch.int64),
    )
