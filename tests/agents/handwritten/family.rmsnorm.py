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
