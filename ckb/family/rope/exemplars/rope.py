"""Rotary position embedding; dimension `i` of a head turns with dimension `i + head_dim / 2`."""

from __future__ import annotations

import torch
from torch import Tensor

from .config import HEAD_DIM, ROPE_THETA


def rope_tables(num_positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of every position's angles, each [num_positions, head_dim] fp32.

    The sines of a head's first half are negated, so that turning needs no further sign.
    """
    inverse_frequency = 1.0 / ROPE_THETA ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse_frequency
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [tokens, heads, head_dim] by the table rows cos, sin [tokens, head_dim] of its tokens."""
    swapped = x.roll(HEAD_DIM // 2, dims=-1)
    return x * cos[:, None] + swapped * sin[:, None]
