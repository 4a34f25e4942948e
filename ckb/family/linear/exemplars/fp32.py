"""Linear projection with float32 weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class Linear:
    """`x Wᵀ + b`, for one weight [out, in] fp32 or for several that read the same x, as if stacked.

    The weights stay where they are, so stacking q, k and v copies nothing.
    """

    def __init__(self, *weights: Tensor, bias: Tensor | None = None) -> None:
        if not weights or any(w.dtype != torch.float32 or w.dim() != 2 for w in weights):
            raise TypeError("Linear needs one or more weights [out, in] in float32")
        self.weights = weights
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, in] fp32 -> [tokens, sum of out] fp32"""
        y = torch.cat([F.linear(x, weight) for weight in self.weights], dim=-1)
        return y if self.bias is None else y + self.bias
