"""The gated MLP."""

import torch
from torch import Tensor

from .units import Linear


class SwiGLU:
    """gate, up: [ffn, hidden]; down: [hidden, ffn]."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        self._inner = len(gate)
        self._gate_up, self._down = Linear(gate, up), Linear(down)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, hidden] fp32 -> [tokens, hidden] fp32."""
        both = self._gate_up(x)
        gate = both[:, : self._inner]
        return self._down(both[:, self._inner :].mul(gate).mul(torch.sigmoid(gate)))
