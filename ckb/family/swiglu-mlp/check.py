"""Checks of the gated feed-forward block against float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from metainfer.ckb.checks import Candidate, Finding

TOLERANCE = 5e-6


def check_matches_float64(c: Candidate) -> Iterator[Finding]:
    """The engine's own sizes and odd ones, inputs from the flat to the steep part of the gate."""
    g = c.torch_generator()
    stored = torch.bfloat16 if c.facts.weight_dtype == "bf16" else torch.float32
    for hidden, inner in ((c.config.HIDDEN_SIZE, c.config.INTERMEDIATE_SIZE), (19, 27), (8, 5)):
        gate, up = torch.randn(2, inner, hidden, generator=g).to(stored)
        down = torch.randn(hidden, inner, generator=g).to(stored)
        mlp = c.unit("SwiGLU")(gate, up, down)
        for tokens in (1, 2, 9):
            for magnitude in (0.01, 1.0, 10.0):
                x = torch.randn(tokens, hidden, generator=g) * magnitude / hidden**0.5
                error = _error(mlp(x), _reference(x, gate, up, down))
                if not error <= TOLERANCE:
                    yield Finding(
                        "check_matches_float64",
                        f"hidden {hidden}, inner {inner}, {tokens} tokens, inputs of magnitude {magnitude:g}",
                        {"relative_error": error, "tolerance": TOLERANCE},
                    )
                    return


def check_saturated_gates(c: Candidate) -> Iterator[Finding]:
    """Gates far on either side close to exactly nothing or open fully; none overflows to NaN."""
    stored = torch.bfloat16 if c.facts.weight_dtype == "bf16" else torch.float32
    one = torch.eye(8).to(stored)
    x = torch.tensor([[-1e4, -200.0, -90.0, -1.0, 1.0, 90.0, 200.0, 1e4]])
    error = _error(c.unit("SwiGLU")(one, one, one)(x), _reference(x, one, one, one))
    if not error <= TOLERANCE:
        yield Finding("check_saturated_gates", "wrong for gates of -1e4 to 1e4", {"relative_error": error})


def _reference(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    opened = x.double() @ gate.double().T
    return (opened / (1 + (-opened).exp()) * (x.double() @ up.double().T)) @ down.double().T


def _error(got: Tensor, expected: Tensor) -> float:
    if got.shape != expected.shape or got.dtype != torch.float32:
        return float("inf")
    return float((got.double() - expected).abs().max() / expected.abs().max())
