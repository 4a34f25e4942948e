"""Checks of RMSNorm against the formula in float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from metainfer.ckb.checks import Candidate, Finding

TOLERANCE = 3e-6
"""Relative to the largest element: a few roundings of float32."""


def check_matches_float64(c: Candidate) -> Iterator[Finding]:
    """Sizes of both uses (hidden, head) and an odd one; inputs so small that eps decides, and large ones."""
    g = c.torch_generator()
    for size in (c.config.HIDDEN_SIZE, c.config.HEAD_DIM, 37):
        weight = (torch.randn(size, generator=g) + 0.5).to(_stored(c))
        for shape in ((1, size), (5, size), (3, 4, size)):
            for magnitude in (1e-3, 1.0, 1e3):
                for eps in (1e-6, 1e-2):
                    x = torch.randn(shape, generator=g) * magnitude
                    error = _error(c.unit("RMSNorm")(weight, eps)(x), _reference(x, weight, eps))
                    if not error <= TOLERANCE:
                        yield Finding(
                            "check_matches_float64",
                            f"x {[*shape]} of magnitude {magnitude:g}, eps {eps:g}: differs from the float64 formula",
                            {"relative_error": error, "tolerance": TOLERANCE},
                        )
                        return


def check_reads_strided_views(c: Candidate) -> Iterator[Finding]:
    """Queries and keys arrive as slices of one projection: rows that do not lie side by side."""
    size = c.config.HEAD_DIM
    projected = torch.randn(3, 7, 2 * size, generator=c.torch_generator())
    weight = torch.rand(size, generator=c.torch_generator()).to(_stored(c))
    for name, x in (("slice", projected[:, 1:5, :size]), ("step", projected[..., ::2])):
        before = x.clone()
        error = _error(c.unit("RMSNorm")(weight, 1e-6)(x), _reference(x, weight, 1e-6))
        if not error <= TOLERANCE:
            yield Finding("check_reads_strided_views", f"wrong for a {name} view", {"relative_error": error})
        if not torch.equal(before, x):
            yield Finding("check_reads_strided_views", f"changed its input ({name} view)")


def _stored(c: Candidate) -> torch.dtype:
    return torch.bfloat16 if c.facts.weight_dtype == "bf16" else torch.float32


def _reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    mean_square = (wide * wide).sum(-1, keepdim=True) / x.shape[-1]
    return wide / (mean_square + eps).sqrt() * weight.double()


def _error(got: Tensor, expected: Tensor) -> float:
    if got.shape != expected.shape or got.dtype != torch.float32:
        return float("inf")
    return float((got.double() - expected).abs().max() / expected.abs().max())
