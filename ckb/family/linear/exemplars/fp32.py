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
        if any(weight.shape[1] != weights[0].shape[1] for weight in weights):
            raise ValueError("stacked weights must have the same number of input features")
        self.weights = weights
        self.bias = bias
        self.in_features = weights[0].shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, in] fp32 -> [tokens, sum of out] fp32"""
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"Linear takes [tokens, {self.in_features}] in float32, not {[*x.shape]} in {x.dtype}")
        y = torch.cat([F.linear(x, weight) for weight in self.weights], dim=-1)
        return y if self.bias is None else y + self.bias
