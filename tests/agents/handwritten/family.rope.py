"""Rotary positions."""

import torch
from torch import Tensor

from .config import HEAD_DIM, ROPE_THETA


def rope_tables(num_positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [num_positions, head_dim] fp32, the halves alike."""
    steps = torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM
    angles = torch.outer(torch.arange(num_positions).float(), 1.0 / (ROPE_THETA**steps))
    return angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [tokens, heads, head_dim] fp32, turned."""
    left, right = x.chunk(2, dim=-1)
    crossed = torch.cat([right.neg(), left], dim=-1)
    return x * cos.unsqueeze(1) + crossed * sin.unsqueeze(1)
