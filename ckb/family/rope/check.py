"""Checks of the rotary embedding: complex rotation in float64, and the property it exists for."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from metainfer.ckb.checks import Candidate, Finding


def check_every_position(c: Candidate) -> Iterator[Finding]:
    """Each position up to the longest context: a wrong pairing or frequency shows as loops of text, not as noise."""
    positions = torch.arange(c.config.MAX_MODEL_LEN)
    x = torch.randn(len(positions), 2, c.config.HEAD_DIM, generator=c.torch_generator())
    got = _turn(c, x, positions)
    if got.shape != x.shape or got.dtype != torch.float32:
        yield Finding("check_every_position", f"returns {[*got.shape]} {got.dtype} for {[*x.shape]} float32")
        return
    error = (got.double() - _reference(c, x, positions)).abs().amax(dim=(1, 2))
    # An angle is a float32 product: its error grows with the position.
    tolerance = 2e-6 + 1e-6 * positions.double()
    worst = int((error / tolerance).argmax())
    if not bool((error <= tolerance).all()):
        yield Finding(
            "check_every_position",
            f"position {worst}: not the rotation by position * theta^(-2i/head_dim) of dimensions i and i + head_dim/2",
            {"error": float(error[worst]), "tolerance": float(tolerance[worst])},
        )


def check_scores_depend_on_distance_only(c: Candidate) -> Iterator[Finding]:
    """A query and a key score alike wherever they stand, if they stand equally far apart."""
    g = c.torch_generator()
    query, key = torch.randn(2, 1, 1, c.config.HEAD_DIM, generator=g)
    distance = c.rng.randrange(1, 9)
    starts = torch.arange(0, min(64, c.config.MAX_MODEL_LEN - distance))
    turned_query = _turn(c, query.expand(len(starts), 1, -1), starts + distance)
    turned_key = _turn(c, key.expand(len(starts), 1, -1), starts)
    scores = (turned_query.double() * turned_key.double()).sum(-1).flatten()
    spread = float(scores.max() - scores.min())
    if not spread <= 1e-3:
        yield Finding(
            "check_scores_depend_on_distance_only",
            f"scores at distance {distance} vary with the position",
            {"spread": spread},
        )


def check_rows_go_with_tokens(c: Candidate) -> Iterator[Finding]:
    """A batch mixes positions in any order, and x may be a view: each token is turned by its own row."""
    heads, size = c.config.NUM_HEADS, c.config.HEAD_DIM
    positions = torch.randint(0, c.config.MAX_MODEL_LEN, (6,), generator=c.torch_generator())
    x = torch.randn(6, heads + 3, size, generator=c.torch_generator())[:, 2 : 2 + heads]
    before = x.clone()
    together = _turn(c, x, positions)
    for token in range(6):
        alone = _turn(c, x[token : token + 1].contiguous(), positions[token : token + 1])
        if not torch.allclose(together[token], alone[0], atol=1e-6, rtol=1e-6):
            yield Finding("check_rows_go_with_tokens", f"token {token} of a batch is turned otherwise than alone")
            return
    if not torch.equal(before, x):
        yield Finding("check_rows_go_with_tokens", "changed its input")


def _turn(c: Candidate, x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = c.unit("rope_tables")(c.config.MAX_MODEL_LEN)
    turned: Tensor = c.unit("apply_rope")(x, cos[positions], sin[positions])
    return turned


def _reference(c: Candidate, x: Tensor, positions: Tensor) -> Tensor:
    half = c.config.HEAD_DIM // 2
    frequency = torch.tensor([c.config.ROPE_THETA ** (-i / half) for i in range(half)], dtype=torch.float64)
    angle = positions.double()[:, None, None] * frequency
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1)
