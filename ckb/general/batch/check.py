"""Checks of the flat batch against a model in plain Python lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from metainfer.ckb.checks import Candidate, Finding


@dataclass
class _Sequence:
    """The part of a sequence that a batch reads."""

    token_ids: list[int]
    block_table: list[int]
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_tokens = len(self.token_ids)


@dataclass
class _Chunk:
    seq: _Sequence
    start: int
    length: int

    @property
    def samples(self) -> bool:
        return self.start + self.length == self.seq.num_tokens


def check_matches_plain_lists(c: Candidate) -> Iterator[Finding]:
    """Random mixes of prefills, middle chunks and decodes over shuffled blocks, lengths around block boundaries."""
    for _ in range(40):
        block_size = c.rng.choice((1, 4, 16))
        chunks = [_random_chunk(c, block_size) for _ in range(c.rng.randrange(1, 7))]
        batch = c.unit("prepare_batch")(chunks, block_size)
        for name, dtype, expected in _expected(chunks, block_size):
            got = getattr(batch, name)
            if got.dtype != dtype or got.tolist() != expected:
                yield Finding(
                    "check_matches_plain_lists",
                    f"{name} is {got.dtype} {got.tolist()}, not {dtype} {expected}, for chunks "
                    f"{[(k.start, k.length, k.seq.num_tokens) for k in chunks]} with blocks of {block_size}",
                )
                return
        yield from _check_tables(batch.block_tables, chunks, block_size)


def check_leaves_its_input_alone(c: Candidate) -> Iterator[Finding]:
    """Sequences live on after the step: their lists are read, not padded or consumed."""
    chunks = [_random_chunk(c, 4) for _ in range(4)]
    before = [(list(k.seq.token_ids), list(k.seq.block_table)) for k in chunks]
    c.unit("prepare_batch")(chunks, 4)
    if before != [(k.seq.token_ids, k.seq.block_table) for k in chunks]:
        yield Finding("check_leaves_its_input_alone", "prepare_batch changed a sequence")


def check_misuse_is_refused(c: Candidate) -> Iterator[Finding]:
    """What would index outside a table or a sequence later is a ValueError now."""
    seq = _Sequence(list(range(10)), [3, 1, 2])
    attempts = {
        "no chunks": [],
        "no tokens": [_Chunk(seq, 4, 0)],
        "a negative start": [_Chunk(seq, -1, 2)],
        "tokens behind the sequence's end": [_Chunk(seq, 8, 3)],
        "more tokens than blocks": [_Chunk(_Sequence(list(range(13)), [3, 1, 2]), 0, 13)],
    }
    for name, chunks in attempts.items():
        try:
            c.unit("prepare_batch")(chunks, 4)
        except ValueError:
            continue
        except Exception as error:
            yield Finding("check_misuse_is_refused", f"{name}: {type(error).__name__} in place of a ValueError")
        else:
            yield Finding("check_misuse_is_refused", f"{name}: accepted")


def _random_chunk(c: Candidate, block_size: int) -> _Chunk:
    length = max(1, c.rng.randrange(1, 4) * block_size + c.rng.randrange(-1, 2))
    blocks = c.rng.sample(range(100), -(-length // block_size) + c.rng.randrange(3))
    seq = _Sequence([c.rng.randrange(1000) for _ in range(length)], blocks)
    start = c.rng.choice((0, length - 1, c.rng.randrange(length)))
    end = c.rng.choice((length, c.rng.randrange(start, length) + 1))
    return _Chunk(seq, start, end - start)


def _expected(chunks: list[_Chunk], block_size: int) -> Iterator[tuple[str, torch.dtype, list[int]]]:
    tokens = [(k.seq, p) for k in chunks for p in range(k.start, k.start + k.length)]
    ends = [sum(k.length for k in chunks[: i + 1]) for i in range(len(chunks))]
    yield "token_ids", torch.int64, [seq.token_ids[p] for seq, p in tokens]
    yield "positions", torch.int64, [p for _, p in tokens]
    slots = [seq.block_table[p // block_size] * block_size + p % block_size for seq, p in tokens]
    yield "slot_mapping", torch.int64, slots
    yield "query_start", torch.int32, [0, *ends]
    yield "context_lens", torch.int32, [k.start + k.length for k in chunks]
    whole = [k.start + k.length == len(k.seq.token_ids) for k in chunks]
    yield "sample_rows", torch.int64, [end - 1 for end, samples in zip(ends, whole, strict=True) if samples]


def _check_tables(tables: torch.Tensor, chunks: list[_Chunk], block_size: int) -> Iterator[Finding]:
    if tables.dtype != torch.int32 or tables.dim() != 2 or not tables.is_contiguous():
        yield Finding("check_matches_plain_lists", "block_tables must be a contiguous [seqs, max_blocks] int32 tensor")
        return
    for row, chunk in zip(tables.tolist(), chunks, strict=True):
        needed = -(-(chunk.start + chunk.length) // block_size)
        if row[:needed] != chunk.seq.block_table[:needed]:
            yield Finding(
                "check_matches_plain_lists", f"a block table reads {row}, not {chunk.seq.block_table[:needed]} first"
            )
