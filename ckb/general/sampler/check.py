"""The sampler against a float64 reference: the right candidates, the right frequencies, nobody's neighbours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from metainfer.ckb.checks import Candidate, Finding

_VOCAB = 24
_DRAWS = 1000


def _sequence(c: Candidate, **params: Any) -> Any:
    return c.unit("Sequence")(0, [1], c.unit("SamplingParams")(max_tokens=4, **params))


def _logits(c: Candidate, rows: int, vocab: int = _VOCAB, scale: float = 2.0) -> Tensor:
    return torch.randn(rows, vocab, generator=c.torch_generator()) * scale


def _reference(row: Tensor, temperature: float, top_k: int, top_p: float) -> list[float]:
    """The distribution to draw from, in float64: temperature, the k most likely, then the nucleus of those."""
    scores = [float(x) / temperature for x in row.double()]
    weights = [math.exp(score - max(scores)) for score in scores]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    order = order[:top_k] if top_k else order
    mass = sum(weights[i] for i in order)
    kept: list[int] = []
    for i in order:
        if sum(weights[j] for j in kept) / mass >= top_p:
            break
        kept.append(i)
    mass = sum(weights[i] for i in kept)
    return [weights[i] / mass if i in kept else 0.0 for i in range(len(weights))]


def check_frequencies(c: Candidate) -> Iterator[Finding]:
    """Tokens come as often as they should, and those that are filtered out never."""
    cases = [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.7, 5, 1.0), (1.0, 0, 0.7), (0.8, 6, 0.6), (1.0, 500, 0.95)]
    for temperature, top_k, top_p in cases:
        top_k = min(top_k, c.config.VOCAB_SIZE)
        row = _logits(c, 1)
        seq = _sequence(c, temperature=temperature, top_k=top_k, top_p=top_p)
        seq.generator.manual_seed(c.rng.getrandbits(60))
        counts: Counter[int] = Counter()
        batch = row.expand(50, _VOCAB).contiguous()
        for _ in range(_DRAWS // 50):
            counts.update(token.token_id for token in c.unit("sample")(batch, [seq] * 50))
        for token_id, expected in enumerate(_reference(row[0], temperature, top_k, top_p)):
            share = counts[token_id] / _DRAWS
            # Wide enough that a right sampler fails about once in a billion times, also for rare tokens.
            tolerance = 6 * math.sqrt(max(expected * (1 - expected), 4e-3) / _DRAWS) + 4 / _DRAWS
            if (expected == 0 and share > 0) or abs(share - expected) > tolerance:
                yield Finding(
                    "check_frequencies",
                    f"temperature {temperature}, top_k {top_k}, top_p {top_p}: token {token_id} comes in "
                    f"{share:.4f} of {_DRAWS} draws, not {expected:.4f}",
                    {"share": share, "expected": expected},
                )
                break


def check_large_vocabulary(c: Candidate) -> Iterator[Finding]:
    """A flat distribution over thousands of tokens: the nucleus has the right size, however large it is."""
    vocab = 3000
    row = _logits(c, 1, vocab, scale=0.5)
    for top_p in (0.02, 0.5, 0.9):
        allowed = {i for i, share in enumerate(_large_nucleus(row[0], top_p)) if share}
        seq = _sequence(c, temperature=1.0, top_p=top_p)
        drawn = {c.unit("sample")(row, [seq])[0].token_id for _ in range(200)}
        if strangers := drawn - allowed:
            yield Finding(
                "check_large_vocabulary",
                f"top_p {top_p}: {len(strangers)} tokens drawn that are not among the {len(allowed)} of the nucleus",
            )
        ranks = {token_id: rank for rank, token_id in enumerate(row[0].argsort(descending=True).tolist())}
        deepest = max(ranks[token_id] for token_id in drawn)
        if deepest < 0.8 * len(allowed) - 2:
            yield Finding(
                "check_large_vocabulary",
                f"top_p {top_p}: of {len(allowed)} candidates only the first {deepest + 1} are drawn",
            )


def _large_nucleus(row: Tensor, top_p: float) -> list[bool]:
    probs = row.double().softmax(dim=-1)
    order = probs.argsort(descending=True)
    before = probs[order].cumsum(dim=0) - probs[order]
    kept = torch.zeros_like(probs, dtype=torch.bool)
    kept[order[before < top_p + 1e-6]] = True
    return [bool(flag) for flag in kept]


def check_greedy(c: Candidate) -> Iterator[Finding]:
    """At temperature 0, with one candidate, or nearly at temperature 0: the most likely token, at any scale."""
    sample = c.unit("sample")
    for scale in (1e-3, 1.0, 1e4):
        orders = [torch.randperm(_VOCAB, generator=c.torch_generator()) for _ in range(6)]
        logits = torch.stack(orders) * scale  # no near ties
        greedy: list[int] = logits.argmax(dim=-1).tolist()
        kinds = {
            "temperature 0": {"temperature": 0.0},
            "top_k 1": {"temperature": 1.5, "top_k": 1},
            "top_p 0.000001": {"temperature": 1.0, "top_p": 1e-6},
            "temperature 1e-300": {"temperature": 1e-300},
        }
        for name, params in kinds.items():
            chosen = [token.token_id for token in sample(logits, [_sequence(c, **params) for _ in range(6)])]
            if chosen != greedy:
                yield Finding("check_greedy", f"{name}, logits of {scale:g}: {chosen}, not {greedy}")


def check_neighbours_do_not_matter(c: Candidate) -> Iterator[Finding]:
    """A request's tokens are the same alone, in company, and whatever torch's global stream does."""
    sample = c.unit("sample")
    steps = [_logits(c, 5) for _ in range(6)]
    seeds = [c.rng.getrandbits(40) for _ in range(5)]
    shapes: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.0},
        {"temperature": 0.9, "top_k": 7},
        {"temperature": 1.2, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 9, "top_p": 0.9},
    ]

    def sequences() -> list[Any]:
        made = [_sequence(c, **shape) for shape in shapes]
        for seq, seed in zip(made, seeds, strict=True):
            seq.generator.manual_seed(seed)
        return made

    company = sequences()
    together = [[token.token_id for token in sample(logits, company)] for logits in steps]
    for row, seq in enumerate(sequences()):
        torch.manual_seed(row)
        alone = [sample(logits[row : row + 1], [seq])[0].token_id for logits in steps]
        if alone != [tokens[row] for tokens in together]:
            yield Finding("check_neighbours_do_not_matter", f"{shapes[row]}: {alone} alone, other tokens in company")
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    sample(steps[0], sequences())
    if not torch.equal(before, torch.random.get_rng_state()):
        yield Finding("check_neighbours_do_not_matter", "sampling draws from torch's global stream")


def check_logprobs(c: Candidate) -> Iterator[Finding]:
    """Log-probabilities are those of the model, whatever the temperature and filters, best first."""
    if not c.facts.logprobs:
        return
    logits = _logits(c, 4, scale=5.0)
    wanted = [3, 0, None, 20]
    shapes = [{"temperature": 0.3}, {"temperature": 1.0, "top_k": 2}, {"temperature": 0.0}, {"temperature": 0.0}]
    sequences = [_sequence(c, logprobs=n, **shape) for n, shape in zip(wanted, shapes, strict=True)]
    for row, (token, count) in enumerate(zip(c.unit("sample")(logits, sequences), wanted, strict=True)):
        if count is None:
            if not math.isnan(token.logprob) or token.top != ():
                yield Finding("check_logprobs", f"row {row}: nobody asked, but it says {token.logprob} and {token.top}")
            continue
        reference = logits[row].double().log_softmax(dim=-1)
        best = reference.topk(count)
        error = max(
            [abs(token.logprob - float(reference[token.token_id]))]
            + [abs(own - float(reference[i])) for i, own in token.top]
        )
        if error > 1e-5:
            yield Finding("check_logprobs", f"row {row}: off by {error:.2e}", {"error": error})
        if [i for i, _ in token.top] != best.indices.tolist():
            yield Finding("check_logprobs", f"row {row}: the {count} most likely tokens are others")


def check_inputs_stay_as_they_are(c: Candidate) -> Iterator[Finding]:
    """The logits belong to the caller; a batch of nobody is a batch too."""
    logits = _logits(c, 3)
    kept = logits.clone()
    c.unit("sample")(logits, [_sequence(c, temperature=0.7, top_k=4, top_p=0.9) for _ in range(3)])
    if not torch.equal(logits, kept):
        yield Finding("check_inputs_stay_as_they_are", "sample changes the logits it was given")
    if c.unit("sample")(torch.empty(0, _VOCAB), []) != []:
        yield Finding("check_inputs_stay_as_they_are", "no rows do not give no tokens")
