"""The flat tensors of one step."""

import math
from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch
from torch import Tensor

from .units import Chunk


@dataclass(frozen=True, slots=True)
class Batch:
    """Chunks one after the other: [tokens] and [samples] int64, the rest, one row or entry per sequence, int32."""

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    sample_rows: Tensor


def prepare_batch(chunks: Several[Chunk], block_size: int) -> Batch:
    """Lay chunks out in their order; behind the blocks that a context needs, its row of block_tables has -1."""
    if not chunks:
        raise ValueError("a batch needs at least one chunk")
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    ends: list[int] = []
    tables: list[list[int]] = []
    starts, sample_rows = [0], []
    for chunk in chunks:
        end = chunk.start + chunk.length
        _check(chunk, end, block_size)
        span = range(chunk.start, end)
        table = chunk.seq.block_table
        token_ids += chunk.seq.token_ids[chunk.start : end]
        positions += span
        slots += [table[p // block_size] * block_size + p % block_size for p in span]
        tables.append(table[: math.ceil(end / block_size)])
        ends.append(end)
        starts.append(starts[-1] + chunk.length)
        if chunk.samples:
            sample_rows.append(starts[-1] - 1)
    width = max(map(len, tables))
    padded = [table + [-1] * (width - len(table)) for table in tables]
    return Batch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        block_tables=torch.tensor(padded, dtype=torch.int32),
        query_start=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor(ends, dtype=torch.int32),
        sample_rows=torch.tensor(sample_rows, dtype=torch.int64),
    )


def _check(chunk: Chunk, end: int, block_size: int) -> None:
    name = f"the chunk {chunk.start} to {end} of a sequence"
    if chunk.length < 1:
        raise ValueError(f"{name} is empty")
    if chunk.start < 0 or end > len(chunk.seq.token_ids):
        raise ValueError(f"{name} leaves its {len(chunk.seq.token_ids)} tokens")
    if end > len(chunk.seq.block_table) * block_size:
        raise ValueError(f"{name} has no block: {len(chunk.seq.block_table)} of {block_size} tokens are in its table")
