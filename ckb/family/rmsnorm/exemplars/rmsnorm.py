"""Root-mean-square layer norm."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


class RMSNorm:
    """Scales the last dimension to unit root mean square, then by `weight`; all in fp32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight.float()
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., size] fp32 -> [..., size] fp32"""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
