"""From logits to tokens, each request with its own random stream."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .sequence import Sequence

_MIN_TEMPERATURE = 1e-6  # less would be zero in fp32; the draw is greedy long before
_LIKELY = 256  # candidates to try before the whole vocabulary is sorted


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A chosen token, with log-probabilities before temperature and filters if asked for."""

    token_id: int
    logprob: float = math.nan
    top: tuple[tuple[int, float], ...] = ()  # the most likely tokens, best first


def sample(logits: Tensor, sequences: list[Sequence]) -> list[SampledToken]:
    """Choose a token per row of logits [sequences, vocab] fp32; no row affects another."""
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    for row, seq in enumerate(sequences):
        if seq.params.temperature > 0:
            token_ids[row] = _draw(logits[row], seq)
    rows = zip(logits, token_ids, sequences, strict=True)
    return [_with_logprobs(row, token_id, seq.params.logprobs) for row, token_id, seq in rows]


def _draw(row: Tensor, seq: Sequence) -> int:
    """Temperature, top-k, top-p on row [vocab], then one number of the request's own stream."""
    params = seq.params
    scores = (row - row.max()) / max(params.temperature, _MIN_TEMPERATURE)
    candidates: Tensor | None = None  # [kept] int64; None is the whole vocabulary
    if 0 < params.top_k < scores.numel():
        scores, candidates = scores.topk(params.top_k)
    probs = scores.softmax(dim=-1)
    if params.top_p < 1:
        probs, kept = _nucleus(probs, params.top_p)
        candidates = kept if candidates is None else candidates[kept]
    cumulative = probs.double().cumsum(dim=0)
    threshold = torch.rand(1, dtype=torch.float64, generator=seq.generator) * cumulative[-1]
    choice = int(torch.searchsorted(cumulative, threshold, right=True))
    return choice if candidates is None else int(candidates[choice])


def _nucleus(probs: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The fewest likeliest entries of probs [n] that sum to `top_p`, and where they stood."""
    best, where = probs.topk(min(_LIKELY, probs.numel()))
    if best.sum() < top_p:
        best, where = probs.sort(descending=True)
    before = best.double().cumsum(dim=0) - best
    count = int((before < top_p).sum())
    return best[:count], where[:count]


def _with_logprobs(row: Tensor, token_id: int, count: int | None) -> SampledToken:
    """Attach what the client asked for of log_softmax(row [vocab])."""
    if count is None:
        return SampledToken(token_id)
    logprobs = row.log_softmax(dim=-1)
    values, ids = logprobs.topk(count)
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return SampledToken(token_id, float(logprobs[token_id]), top)
