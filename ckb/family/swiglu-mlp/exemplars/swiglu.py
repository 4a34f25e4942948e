"""The gated feed-forward block."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from .units import Linear


class SwiGLU:
    """`down(silu(gate(x)) * up(x))`; gate and up run as one projection."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        self.gate_up_proj = Linear(gate, up)
        self.down_proj = Linear(down)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, hidden] fp32 -> [tokens, hidden] fp32"""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)
