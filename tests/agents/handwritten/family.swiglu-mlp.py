"""The gated MLP."""

import torch
from torch import Tensor

from .units import Linear


class SwiGLU:
    """gate, up: [ffn, hidden]; down: [hidden, ffn]."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        self._gate_up, self._down = Linear(gate, up), Linear(down)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, hidden] fp32 -> [tokens, hidden] fp32."""
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(gate * torch.sigmoid(gate) * up)
