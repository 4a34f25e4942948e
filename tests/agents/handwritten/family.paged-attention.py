"""Keys and values in pages, and attention over them."""

import itertools
import math

import torch
from torch import Tensor

from .config import BLOCK_SIZE, HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, NUM_LAYERS
from .units import Batch


class KVCache:
    """key, value: [layers, num_blocks, block_size, kv_heads, head_dim] fp32, unwritten at first."""

    key: Tensor
    value: Tensor

    def __init__(self, num_blocks: int) -> None:
        shape = (NUM_LAYERS, num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
        self.key = torch.empty(shape, dtype=torch.float32)
        self.value = torch.empty(shape, dtype=torch.float32)

    def write(self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        """key, value: [tokens, kv_heads, head_dim] fp32; slot_mapping: [tokens] int64, no slot twice."""
        self.key[layer].flatten(0, 1).index_copy_(0, slot_mapping, key)
        self.value[layer].flatten(0, 1).index_copy_(0, slot_mapping, value)


def paged_attention(query: Tensor, key_cache: Tensor, value_cache: Tensor, batch: Batch) -> Tensor:
    """query: [tokens, heads, head_dim]; caches: [blocks, block_size, kv_heads, head_dim]; fp32 like the query."""
    _check_tensors(query, key_cache, value_cache)
    starts, contexts = _check_batch(batch, len(query), len(key_cache))
    out = torch.empty(query.shape, dtype=torch.float32)
    for i, context in enumerate(contexts):
        table = batch.block_tables[i, : math.ceil(context / BLOCK_SIZE)].long()
        keys = key_cache[table].flatten(0, 1)
        values = value_cache[table].flatten(0, 1)
        for row in range(starts[i], starts[i + 1]):
            visible = context - starts[i + 1] + row + 1
            out[row] = _attend(query[row], keys[:visible], values[:visible])
    return out


def _attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One token's heads, [heads, head_dim], over the keys and values that it sees, [visible, kv_heads, head_dim]."""
    grouped = query.reshape(NUM_KV_HEADS, NUM_HEADS // NUM_KV_HEADS, HEAD_DIM)
    scores = torch.bmm(grouped, keys.permute(1, 2, 0)) / math.sqrt(HEAD_DIM)
    return torch.bmm(scores.softmax(dim=-1), values.transpose(0, 1)).reshape(NUM_HEADS, HEAD_DIM)


def _check_tensors(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> None:
    if any(tensor.dtype != torch.float32 for tensor in (query, key_cache, value_cache)):
        raise TypeError(f"query and caches are {query.dtype}, {key_cache.dtype}, {value_cache.dtype}, not float32")
    if query.dim() != 3 or tuple(query.shape[1:]) != (NUM_HEADS, HEAD_DIM):
        raise ValueError(f"the query has the shape {tuple(query.shape)}, not (tokens, {NUM_HEADS}, {HEAD_DIM})")
    if not len(query):
        raise ValueError("there are no tokens")
    for cache in (key_cache, value_cache):
        expected = (len(key_cache), BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
        if tuple(cache.shape) != expected or not cache.is_contiguous():
            raise ValueError(f"a cache has the shape {tuple(cache.shape)}, and must be {expected}, contiguous")


def _check_batch(batch: Batch, tokens: int, num_blocks: int) -> tuple[list[int], list[int]]:
    """Where each sequence's rows begin, with the end of the last, and how long each context is."""
    tables, starts, contexts = batch.block_tables, batch.query_start, batch.context_lens
    if any(tensor.dtype != torch.int32 for tensor in (tables, starts, contexts)):
        raise TypeError(f"the batch holds {tables.dtype}, {starts.dtype}, {contexts.dtype}, not int32")
    if tables.dim() != 2 or starts.dim() != 1 or contexts.dim() != 1 or not len(contexts):
        raise ValueError("the batch's tensors have wrong dimensions")
    if len(tables) != len(contexts) or len(starts) != len(contexts) + 1:
        raise ValueError(f"{len(tables)} tables and {len(starts)} starts for {len(contexts)} sequences")
    begins, lengths = starts.tolist(), contexts.tolist()
    if begins[0] != 0 or begins[-1] != tokens:
        raise ValueError(f"the sequences own the rows {begins[0]} to {begins[-1]}, and the query has {tokens}")
    for i, (begin, end) in enumerate(itertools.pairwise(begins)):
        if not 1 <= end - begin <= lengths[i]:
            raise ValueError(f"sequence {i} has {end - begin} new tokens in a context of {lengths[i]}")
        needed = math.ceil(lengths[i] / BLOCK_SIZE)
        row = tables[i, :needed]
        if len(row) < needed or bool(((row < 0) | (row >= num_blocks)).any()):
            raise ValueError(f"sequence {i} needs {needed} of {num_blocks} blocks, and its table shows {row.tolist()}")
    return begins, lengths
