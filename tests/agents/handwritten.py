"""Units as a good model might write them: right, and unlike the exemplars."""

from __future__ import annotations

RMSNORM = '''
"""Root-mean-square norm."""

import torch
from torch import Tensor


class RMSNorm:
    """weight: [size]; x: [..., size] fp32 -> [..., size] fp32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._scale = weight.to(torch.float32)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Each vector by its own magnitude."""
        power = torch.mean(x * x, dim=-1, keepdim=True)
        return self._scale * (x * torch.rsqrt(power + self._eps))
'''

RMSNORM_WITHOUT_EPS = RMSNORM.replace("power + self._eps", "power")

ROPE = '''
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
'''

SWIGLU = '''
"""The gated MLP."""

import torch
from torch import Tensor

from .units import Linear


class SwiGLU:
    """gate, up: [ffn, hidden]; down: [hidden, ffn]."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        self._gate, self._up, self._down = Linear(gate), Linear(up), Linear(down)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, hidden] fp32 -> [tokens, hidden] fp32."""
        gate = self._gate(x)
        return self._down(gate * torch.sigmoid(gate) * self._up(x))
'''


def fenced(code: str) -> str:
    return f"Here it is.\n\n```python\n{code.strip()}\n```\n"
