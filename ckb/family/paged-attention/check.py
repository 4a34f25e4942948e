"""Checks of attention over the paged cache: a float64 loop over heads, on ragged batches in a poisoned cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from metainfer.ckb.checks import Candidate, Finding

TOLERANCE = 4e-6
ROUNDING = 4 * 2.0**-24
"""A score is a sum of fp32 products: its error is a few roundings of the sum of their magnitudes."""
NAN = float("nan")


def check_ragged_batches(c: Candidate) -> Iterator[Finding]:
    """Decodes, whole prefills and later chunks together; contexts around block boundaries; a few steep softmaxes."""
    block = c.config.BLOCK_SIZE
    edges = (1, 2, block - 1, block, block + 1, 2 * block, 3 * block + 1)
    for sharpness in (1.0, 8.0, 100.0):
        contexts = [c.rng.choice(edges) for _ in range(c.rng.randrange(2, 6))] + [c.rng.randrange(1, 5 * block)]
        chunks = [(context, c.rng.choice((1, context, c.rng.randrange(1, context + 1)))) for context in contexts]
        case = _Case(c, chunks, sharpness)
        yield from case.compare("check_ragged_batches")


def check_long_prefill_and_lone_decode(c: Candidate) -> Iterator[Finding]:
    """The two extremes of a step: one long chunk, and one token that sees many blocks."""
    limit = min(200, c.config.MAX_MODEL_LEN)
    for chunks in ([(limit, limit)], [(limit, 1)], [(limit, limit // 2), (1, 1)]):
        yield from _Case(c, chunks, 1.0).compare("check_long_prefill_and_lone_decode")


def check_chunking_changes_nothing(c: Candidate) -> Iterator[Finding]:
    """The same token gets the same result in a prefill, in a later chunk, and as a decode among others."""
    context = 2 * c.config.BLOCK_SIZE + 3
    case = _Case(c, [(context, context)], 1.0)
    whole = case.run()
    for length in (1, 2, c.config.BLOCK_SIZE):
        part = case.tail(length).run()
        error = float((part - whole[-length:]).abs().max())
        if not error <= TOLERANCE:
            yield Finding(
                "check_chunking_changes_nothing",
                f"the last {length} tokens differ from those of the whole prefill",
                {"error": error},
            )


def check_write_fills_the_named_slots(c: Candidate) -> Iterator[Finding]:
    """KVCache.write touches the slots of one layer, and no other."""
    config, g = c.config, c.torch_generator()
    cache = c.unit("KVCache")(5)
    shape = (config.NUM_LAYERS, 5, config.BLOCK_SIZE, config.NUM_KV_HEADS, config.HEAD_DIM)
    for name, held in (("key", cache.key), ("value", cache.value)):
        if held.shape != shape or held.dtype != torch.float32:
            yield Finding("check_write_fills_the_named_slots", f"{name} is {[*held.shape]} {held.dtype}")
            return
    cache.key.fill_(-1.0), cache.value.fill_(-2.0)
    layer = c.rng.randrange(config.NUM_LAYERS)
    slots = torch.randperm(5 * config.BLOCK_SIZE, generator=g)[:7]
    # Keys and values come as slices of one projection.
    projected = torch.randn(7, 2 * config.NUM_KV_HEADS, config.HEAD_DIM, generator=g)
    key, value = projected.split(config.NUM_KV_HEADS, dim=1)
    expected_key, expected_value = cache.key.clone(), cache.value.clone()
    for row, slot in enumerate(slots.tolist()):
        expected_key[layer, slot // config.BLOCK_SIZE, slot % config.BLOCK_SIZE] = key[row]
        expected_value[layer, slot // config.BLOCK_SIZE, slot % config.BLOCK_SIZE] = value[row]
    cache.write(layer, key, value, slots)
    if not torch.equal(cache.key, expected_key) or not torch.equal(cache.value, expected_value):
        yield Finding("check_write_fills_the_named_slots", "the cache does not hold exactly what was written")


def check_misuse_is_refused(c: Candidate) -> Iterator[Finding]:
    """Whatever would make a kernel read outside its operands is a ValueError or TypeError, not a crash."""
    case = _Case(c, [(c.config.BLOCK_SIZE + 1, 3)], 1.0)
    attempts: dict[str, dict[str, Any]] = {
        "a block that does not exist": {"block_tables": torch.full_like(case.fields["block_tables"], 10_000)},
        "a negative block": {"block_tables": torch.full_like(case.fields["block_tables"], -1)},
        "a table shorter than the context": {"block_tables": case.fields["block_tables"][:, :1].contiguous()},
        "a context shorter than the chunk": {"context_lens": torch.tensor([2], dtype=torch.int32)},
        "a table in int64": {"block_tables": case.fields["block_tables"].long()},
        "a table with gaps": {"block_tables": case.fields["block_tables"].repeat(1, 2)[:, ::2]},
        "no tokens": {"query": case.query[:0], "query_start": torch.zeros(2, dtype=torch.int32)},
        "a query of other tokens": {"query": case.query[:1]},
        "a query of other heads": {"query": case.query[:, :-1]},
        "a float64 query": {"query": case.query.double()},
        "a float64 cache": {"key_cache": case.key_cache.double()},
        "a cache of other blocks": {"value_cache": case.value_cache.transpose(1, 2)},
    }
    for name, changed in attempts.items():
        try:
            case.run(**changed)
        except (ValueError, TypeError):
            continue
        except Exception as error:
            yield Finding("check_misuse_is_refused", f"{name}: {type(error).__name__} in place of a ValueError")
        else:
            yield Finding("check_misuse_is_refused", f"{name}: accepted")


class _Case:
    """A batch of (context, new tokens) pairs whose blocks lie shuffled in a cache that is NaN wherever it may be."""

    def __init__(self, c: Candidate, chunks: list[tuple[int, int]], sharpness: float) -> None:
        config, g = c.config, c.torch_generator()
        block = config.BLOCK_SIZE
        self.candidate, self.chunks = c, chunks
        counts = [-(-context // block) for context, _ in chunks]
        num_blocks = sum(counts) + 3
        order = torch.randperm(num_blocks, generator=g).tolist()
        shape = (num_blocks, block, config.NUM_KV_HEADS, config.HEAD_DIM)
        self.key_cache, self.value_cache = torch.full(shape, NAN), torch.full(shape, NAN)
        tables = torch.full((len(chunks), max(counts) + 1), -1, dtype=torch.int32)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for row, ((context, _), count) in enumerate(zip(chunks, counts, strict=True)):
            mine, order = order[:count], order[count:]
            tables[row, :count] = torch.tensor(mine, dtype=torch.int32)
            key, value = torch.randn(2, context, config.NUM_KV_HEADS, config.HEAD_DIM, generator=g)
            for position in range(context):
                self.key_cache[mine[position // block], position % block] = key[position]
                self.value_cache[mine[position // block], position % block] = value[position]
            self.keys.append(key)
            self.values.append(value)
        lengths = [length for _, length in chunks]
        self.query = torch.randn(sum(lengths), config.NUM_HEADS, config.HEAD_DIM, generator=g) * sharpness
        tokens = sum(lengths)
        self.fields = {
            "token_ids": torch.zeros(tokens, dtype=torch.int64),
            "positions": torch.cat([torch.arange(context - length, context) for context, length in chunks]),
            "slot_mapping": torch.zeros(tokens, dtype=torch.int64),
            "block_tables": tables,
            "query_start": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
            "context_lens": torch.tensor([context for context, _ in chunks], dtype=torch.int32),
            "sample_rows": torch.zeros(0, dtype=torch.int64),
        }

    def run(self, **changed: Tensor) -> Tensor:
        operands = {"query": self.query, "key_cache": self.key_cache, "value_cache": self.value_cache}
        operands |= {name: changed.pop(name) for name in list(changed) if name in operands}
        batch = self.candidate.unit("Batch")(**(self.fields | changed))
        attended: Tensor = self.candidate.unit("paged_attention")(*operands.values(), batch)
        return attended

    def tail(self, length: int) -> _Case:
        """The same single sequence and cache, with only its last `length` tokens as queries."""
        part = object.__new__(_Case)
        part.__dict__.update(self.__dict__)
        part.query = self.query[-length:]
        part.fields = self.fields | {
            "positions": self.fields["positions"][-length:],
            "query_start": torch.tensor([0, length], dtype=torch.int32),
        }
        return part

    def compare(self, check: str) -> Iterator[Finding]:
        # Queries arrive as a view in some engines: every second head of a wider tensor.
        wide = self.query.repeat_interleave(2, dim=1)
        for name, query in (("contiguous", self.query), ("strided", wide[:, ::2])):
            got, (expected, rounding) = self.run(query=query), self.expected()
            where = f"{name} query, (context, new tokens) {self.chunks}"
            if got.shape != expected.shape or got.dtype != torch.float32:
                yield Finding(check, f"{where}: returns {[*got.shape]} {got.dtype}")
                return
            error = (got.double() - expected).abs().nan_to_num(nan=float("inf"))
            tolerance = 4 * TOLERANCE + rounding[:, :, None]
            if not bool((error <= tolerance).all()):
                token, head, _ = torch.unravel_index((error / tolerance).argmax(), error.shape)
                yield Finding(
                    check,
                    f"{where}: token {int(token)}, head {int(head)} differs from the float64 softmax",
                    {"error": float(error[token, head].max()), "tolerance": float(tolerance[token, head])},
                )
                return

    def expected(self) -> tuple[Tensor, Tensor]:
        """The attended values, and per token and head how far rounding of the scores alone may move them.

        A steep softmax passes the rounding of its scores on: two keys that nearly tie share their weight by it.
        """
        config = self.candidate.config
        group = config.NUM_HEADS // config.NUM_KV_HEADS
        out = torch.empty(self.query.shape, dtype=torch.float64)
        rounding = torch.empty(self.query.shape[:2], dtype=torch.float64)
        token = 0
        for (context, length), key, value in zip(self.chunks, self.keys, self.values, strict=True):
            for position in range(context - length, context):
                for head in range(config.NUM_HEADS):
                    seen_keys = key[: position + 1, head // group].double()
                    seen_values = value[: position + 1, head // group].double()
                    query = self.query[token, head].double() / config.HEAD_DIM**0.5
                    out[token, head] = (seen_keys @ query).softmax(0) @ seen_values
                    magnitude = (seen_keys.abs() @ query.abs()).max()
                    rounding[token, head] = 2 * ROUNDING * magnitude * seen_values.abs().max()
                token += 1
        return out, rounding
