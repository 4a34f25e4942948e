"""Checks of the linear projection against float64, over sizes that no kernel likes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from metainfer.ckb.checks import Candidate, Finding

TOLERANCE = 2e-6
"""Of the sum of |x||w|, which bounds what rounding in float32 may do whatever the order of summation."""
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 33)


def check_matches_float64(c: Candidate) -> Iterator[Finding]:
    """Odd sizes around every vector width, the engine's own sizes, and all small numbers of rows."""
    g = c.torch_generator()
    own = (c.config.HIDDEN_SIZE, c.config.INTERMEDIATE_SIZE)
    sizes = [(1, 1), (3, 7), (8, 8), (25, 31), (24, 32), (37, 70), (130, 33), own[::-1], own]
    sizes += [(c.rng.randrange(1, 90), c.rng.randrange(1, 200)) for _ in range(4)]
    for out_features, in_features in sizes:
        weight = _weight(c, out_features, in_features, g)
        linear = c.unit("Linear")(weight)
        for rows in ROWS if in_features < 200 else (1, 4, 7):
            x = torch.randn(rows, in_features, generator=g)
            yield from _compare("check_matches_float64", linear(x), x, [weight], None)


def check_stacked_weights_and_bias(c: Candidate) -> Iterator[Finding]:
    """Several weights give their results side by side, in order; one bias covers them all."""
    g = c.torch_generator()
    weights = [_weight(c, out_features, 40, g) for out_features in (13, 5, 32)]
    bias = torch.randn(50, generator=g).to(_stored(c))
    for rows in ROWS:
        x = torch.randn(rows, 40, generator=g)
        yield from _compare("check_stacked_weights_and_bias", c.unit("Linear")(*weights)(x), x, weights, None)
        got = c.unit("Linear")(*weights, bias=bias)(x)
        yield from _compare("check_stacked_weights_and_bias", got, x, weights, bias)


def check_touches_only_its_operands(c: Candidate) -> Iterator[Finding]:
    """Weights lie inside a mapped file and x may be a view: what stands beside them is not theirs."""
    g = c.torch_generator()
    for out_features, in_features in ((5, 24), (7, 21), (30, 64)):
        mapped = torch.full((out_features + 4, in_features), float("nan")).to(_stored(c))
        mapped[2 : 2 + out_features] = _weight(c, out_features, in_features, g)
        weight = mapped[2 : 2 + out_features]
        wide = torch.full((9, 2 * in_features), float("nan"))
        wide[:, ::2] = torch.randn(9, in_features, generator=g)
        for x in (wide[:5, ::2], wide[1::3, ::2], wide[:, ::2].T.contiguous().T):
            before = x.clone()
            yield from _compare("check_touches_only_its_operands", c.unit("Linear")(weight)(x), before, [weight], None)
            if not torch.equal(before, x):
                yield Finding("check_touches_only_its_operands", "changed its input")


def check_rows_do_not_depend_on_company(c: Candidate) -> Iterator[Finding]:
    """With bf16 weights a row has the same bits alone and among others, so batching cannot change a token."""
    if c.facts.weight_dtype != "bf16":
        return
    g = c.torch_generator()
    for out_features, in_features in ((50, 100), (31, c.config.HIDDEN_SIZE)):
        linear = c.unit("Linear")(_weight(c, out_features, in_features, g))
        x = torch.randn(21, in_features, generator=g)
        together = linear(x)
        for rows in (1, 2, 3, 4, 6):
            if not torch.equal(linear(x[:rows]), together[:rows]):
                yield Finding(
                    "check_rows_do_not_depend_on_company", f"{rows} rows of 21 have other bits when computed alone"
                )
                return


def check_misuse_is_refused(c: Candidate) -> Iterator[Finding]:
    """No rows is a valid call; wrong sizes and dtypes are errors, never a crash or a wrong result."""
    weight = _weight(c, 6, 10, c.torch_generator())
    linear = c.unit("Linear")(weight)
    if linear(torch.empty(0, 10)).shape != (0, 6):
        yield Finding("check_misuse_is_refused", "no rows of x must give no rows of y")
    other = torch.float32 if c.facts.weight_dtype == "bf16" else torch.bfloat16
    attempts = {
        "too few features": lambda: linear(torch.zeros(2, 9)),
        "float64 input": lambda: linear(torch.zeros(2, 10, dtype=torch.float64)),
        "a vector": lambda: linear(torch.zeros(10)),
        "a weight of another dtype": lambda: c.unit("Linear")(weight.to(other)),
        "weights of different widths": lambda: c.unit("Linear")(weight, _weight(c, 6, 11, c.torch_generator())),
        "no weight": lambda: c.unit("Linear")(),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except (ValueError, TypeError):
            continue
        except Exception as error:
            yield Finding("check_misuse_is_refused", f"{name}: {type(error).__name__} in place of a ValueError")
        else:
            yield Finding("check_misuse_is_refused", f"{name}: accepted")


def _stored(c: Candidate) -> torch.dtype:
    return torch.bfloat16 if c.facts.weight_dtype == "bf16" else torch.float32


def _weight(c: Candidate, out_features: int, in_features: int, g: torch.Generator) -> Tensor:
    return torch.randn(out_features, in_features, generator=g).to(_stored(c))


def _compare(check: str, got: Tensor, x: Tensor, weights: list[Tensor], bias: Tensor | None) -> Iterator[Finding]:
    stacked = torch.cat(weights).double()
    expected = x.double() @ stacked.T
    bound = x.double().abs() @ stacked.abs().T
    if bias is not None:
        expected, bound = expected + bias.double(), bound + bias.double().abs()
    where = f"x {[*x.shape]}, weights {[[*w.shape] for w in weights]}, {'no ' if bias is None else ''}bias"
    if got.shape != expected.shape or got.dtype != torch.float32:
        yield Finding(check, f"{where}: returns {[*got.shape]} {got.dtype}")
        return
    error = float(((got.double() - expected).abs() / bound).max())
    if not error <= TOLERANCE:
        yield Finding(check, f"{where}: differs from float64", {"error_of_bound": error, "tolerance": TOLERANCE})
