"""The layers that know nothing of sequences: norm, rotary embedding, linear, MLP."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .config import HEAD_DIM, ROPE_THETA
from .kernels import load_kernels


class RMSNorm:
    """Scales the last dimension to unit root mean square, then by `weight`; all in fp32."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight.float()
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: [..., size] fp32 -> [..., size] fp32"""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rope_tables(num_positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of every position's angles, each [num_positions, head_dim] fp32.

    The sines of a head's first half are negated, so that turning needs no further sign.
    """
    inverse_frequency = 1.0 / ROPE_THETA ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse_frequency
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [tokens, heads, head_dim] by the table rows cos, sin [tokens, head_dim] of its tokens."""
    swapped = x.roll(HEAD_DIM // 2, dims=-1)
    return x * cos[:, None] + swapped * sin[:, None]


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


class SwiGLU:
    """`down(silu(gate(x)) * up(x))`; gate and up run as one projection."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor) -> None:
        self.gate_up_proj = Linear(gate, up)
        self.down_proj = Linear(down)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [tokens, hidden] fp32 -> [tokens, hidden] fp32"""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)
