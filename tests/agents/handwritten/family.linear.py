"""Projections by bf16 weights, in fp32."""

import torch
from torch import Tensor

_TILE_ROWS = 2048
"""Rows of a weight that are widened at once: a few megabytes, which a cache holds while all rows of x pass by."""


class Linear:
    """weights: each [out_i, in] bf16, used where they lie; x: [tokens, in] fp32 -> [tokens, sum of out_i] fp32."""

    def __init__(self, *weights: Tensor, bias: Tensor | None = None) -> None:
        if not weights:
            raise ValueError("a Linear needs at least one weight")
        for weight in weights:
            if weight.dtype != torch.bfloat16:
                raise TypeError(f"a weight is {weight.dtype}, and not bfloat16")
            if weight.dim() != 2 or weight.shape[1] != weights[0].shape[1]:
                raise ValueError(f"weights of shapes {[tuple(w.shape) for w in weights]} do not stack")
            if not weight.is_contiguous():
                raise ValueError(f"a weight of shape {tuple(weight.shape)} is not contiguous")
        self._weights = weights
        self._in = weights[0].shape[1]
        self._out = sum(weight.shape[0] for weight in weights)
        if bias is not None and bias.dtype != torch.bfloat16:
            raise TypeError(f"the bias is {bias.dtype}, and not bfloat16")
        if bias is not None and tuple(bias.shape) != (self._out,):
            raise ValueError(f"the bias has the shape {tuple(bias.shape)}, and not ({self._out},)")
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        """Every row by a product of its own, so that its bits do not depend on how many rows come along."""
        if x.dtype != torch.float32:
            raise TypeError(f"x is {x.dtype}, and not float32")
        if x.dim() != 2 or x.shape[1] != self._in:
            raise ValueError(f"x has the shape {tuple(x.shape)}, and not (tokens, {self._in})")
        rows = [row.clone(memory_format=torch.contiguous_format) for row in x]
        y = x.new_empty((len(rows), self._out))
        start = 0
        for weight in self._weights:
            for tile in weight.split(_TILE_ROWS):
                wide, end = tile.float(), start + len(tile)
                for row, result in zip(rows, y, strict=True):
                    result[start:end] = torch.mv(wide, row)
                start = end
        return y if self._bias is None else y.add_(self._bias)
