"""Linear projection with bfloat16 weights and float32 arithmetic."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from .units import load_kernels


class Linear:
    """`x Wᵀ + b`, for one weight [out, in] bf16 or for several that read the same x, as if stacked.

    The weights stay where they are (memory-mapped), so stacking q, k and v copies nothing. A row of the
    result has the same bits whatever rows are beside it.
    """

    def __init__(self, *weights: Tensor, bias: Tensor | None = None) -> None:
        if not weights or any(w.dtype != torch.bfloat16 or w.dim() != 2 for w in weights):
            raise TypeError("Linear needs one or more weights [out, in] in bfloat16")
        self.weights = [weight.contiguous() for weight in weights]
        self.pointers = (ctypes.c_void_p * len(weights))(*(weight.data_ptr() for weight in self.weights))
        self.sizes = (ctypes.c_int64 * len(weights))(*(len(weight) for weight in weights))
        self.bias = None if bias is None else bias.float()
        self.in_features = weights[0].shape[1]
        if any(weight.shape[1] != self.in_features for weight in weights):
            raise ValueError("stacked weights must have the same number of input features")

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, in] fp32 -> [tokens, sum of out] fp32"""
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"Linear takes [tokens, {self.in_features}] in float32, not {[*x.shape]} in {x.dtype}")
        x = x.contiguous()
        y = torch.empty(len(x), sum(self.sizes), dtype=torch.float32)
        _linear_bf16()(
            x.data_ptr(), self.pointers, self.sizes, y.data_ptr(), len(self.sizes), *x.shape, torch.get_num_threads()
        )
        return y if self.bias is None else y.add_(self.bias)


@functools.cache
def _linear_bf16() -> Any:
    kernel = load_kernels().linear_bf16
    kernel.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3 + [ctypes.c_int]
    kernel.restype = None
    return kernel
