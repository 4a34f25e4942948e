"""The next token of each row."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .units import SamplingParams, Sequence

_FIRST_CANDIDATES = 64
"""How many of the best tokens are looked at first for a nucleus; four times as many if they do not hold it."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token, and with log-probabilities asked for, its own and those of the most likely ones, best first."""

    token_id: int
    logprob: float = math.nan
    top: tuple[tuple[int, float], ...] = ()


def sample(logits: Tensor, sequences: list[Sequence]) -> list[SampledToken]:
    """logits: [sequences, vocab] fp32, not changed; one token per row."""
    greedy = any(seq.params.temperature == 0 for seq in sequences)
    best = logits.argmax(dim=-1).tolist() if greedy else []
    return [
        _with_logprobs(row, seq.params, best[i] if seq.params.temperature == 0 else _draw(row, seq))
        for i, (row, seq) in enumerate(zip(logits, sequences, strict=True))
    ]


def _draw(row: Tensor, seq: Sequence) -> int:
    """One token of [vocab] scores, by one number of the sequence's own stream."""
    params = seq.params
    divisor = max(params.temperature, torch.finfo(torch.float32).tiny)
    scores = (row - row.max()) / divisor
    ids: Tensor | None = None
    if params.top_k:
        scores, ids = torch.topk(scores, min(params.top_k, len(scores)))
    weights = torch.softmax(scores.double(), dim=-1)
    if params.top_p < 1:
        weights, order = _nucleus(weights, params.top_p)
        ids = order if ids is None else ids[order]
    mass = weights.cumsum(dim=-1)
    point = torch.rand(1, generator=seq.generator, dtype=torch.float64) * mass[-1]
    at = min(int(torch.searchsorted(mass, point, right=True)), len(mass) - 1)
    return at if ids is None else int(ids[at])


def _nucleus(weights: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest most likely ones that reach top_p, best first, and their places."""
    count = min(_FIRST_CANDIDATES, len(weights))
    kept, order = torch.topk(weights, count)
    while count < len(weights) and float(kept.sum()) < top_p:
        count = min(4 * count, len(weights))
        kept, order = torch.topk(weights, count)
    before = kept.cumsum(dim=-1) - kept
    size = max(1, int((before < top_p).sum()))
    return kept[:size], order[:size]


def _with_logprobs(row: Tensor, params: SamplingParams, token_id: int) -> SampledToken:
    """Log-probabilities are those of the raw row, whatever shaped the draw."""
    if params.logprobs is None:
        return SampledToken(token_id)
    logprobs = torch.log_softmax(row.float(), dim=-1)
    values, ids = torch.topk(logprobs, params.logprobs)
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return SampledToken(token_id, float(logprobs[token_id]), top)
