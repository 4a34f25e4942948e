"""Sequences count their tokens, parameters refuse what is out of range, and every request has its own stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from metainfer.ckb.checks import Candidate, Finding

_NOT_WHOLE: tuple[Any, ...] = (-1, 0.5, 10**30, True, "1", float("nan"))
_NOT_A_NUMBER: tuple[Any, ...] = (-0.1, float("nan"), float("inf"), "1", True, 10**30)


def check_refuses_by_name(c: Candidate) -> Iterator[Finding]:
    """Whatever is out of range is a ValueError that starts with the field's name."""
    bad: dict[str, tuple[Any, ...]] = {
        "max_tokens": (0, *_NOT_WHOLE),
        "temperature": (2.1, *_NOT_A_NUMBER),
        "top_k": _NOT_WHOLE,
        "top_p": (0, 0.0, 1.1, *_NOT_A_NUMBER),
        "ignore_eos": (1, "yes", None),
    }
    if c.facts.seed:
        bad["seed"] = (0.5, 2**63, -(2**63) - 1, True, "1")
    if c.facts.stop:
        bad["stop"] = (("",), ("a", ""), ("a", "b", "c", "d", "e"))
    if c.facts.logprobs:
        bad["logprobs"] = (21, *_NOT_WHOLE)
    for field, values in bad.items():
        for value in values:
            try:
                c.unit("SamplingParams")(**({"max_tokens": 1} | {field: value}))
            except ValueError as error:
                if not str(error).startswith(f"{field}: "):
                    yield Finding("check_refuses_by_name", f"{field}={value!r} is refused without its name: {error}")
            else:
                yield Finding("check_refuses_by_name", f"{field}={value!r} is accepted")


def check_accepts_the_edges(c: Candidate) -> Iterator[Finding]:
    """The least and the greatest allowed value of each field."""
    edges: list[dict[str, Any]] = [
        {"max_tokens": 1},
        {"max_tokens": c.config.MAX_MODEL_LEN},
        {"temperature": 0},
        {"temperature": 2.0},
        {"top_k": 0},
        {"top_k": 1},
        {"top_p": 1},
        {"top_p": 0.001},
        {"ignore_eos": True},
    ]
    edges += [{"seed": 0}, {"seed": -(2**63)}, {"seed": 2**63 - 1}, {"seed": None}] if c.facts.seed else []
    edges += [{"stop": ()}, {"stop": ("a", "b", "c", "d")}] if c.facts.stop else []
    edges += [{"logprobs": None}, {"logprobs": 0}, {"logprobs": 20}] if c.facts.logprobs else []
    for edge in edges:
        try:
            c.unit("SamplingParams")(**({"max_tokens": 1} | edge))
        except ValueError as error:
            yield Finding("check_accepts_the_edges", f"{edge} is refused: {error}")


def check_counts(c: Candidate) -> Iterator[Finding]:
    """A sequence tells prompt and generated tokens apart, and does not share the caller's list."""
    for _ in range(20):
        count = c.rng.randint(1, 40)
        prompt = [c.rng.randrange(100) for _ in range(count)]
        answer = [c.rng.randrange(100) for _ in range(c.rng.randint(0, 40))]
        seq = c.unit("Sequence")(7, prompt, c.unit("SamplingParams")(max_tokens=40))
        seq.token_ids.extend(answer)
        seen = (seq.num_prompt_tokens, seq.num_tokens, seq.num_generated, seq.generated_token_ids)
        if seen != (count, count + len(answer), len(answer), answer):
            yield Finding("check_counts", f"{count} + {len(answer)} tokens are counted as {seen[:3]}")
        if seq.token_ids is prompt:
            yield Finding("check_counts", "the sequence grows the list of its caller")
        if (seq.num_computed_tokens, seq.num_cached_tokens, seq.block_table, seq.finish_reason) != (0, 0, [], None):
            yield Finding("check_counts", "a new sequence claims that something of it is computed or ended")


def check_streams_are_own(c: Candidate) -> Iterator[Finding]:
    """Equal seeds give equal streams, others and none give other ones; nobody uses the global stream."""

    def draw(**params: Any) -> list[float]:
        torch.manual_seed(1)
        seq = c.unit("Sequence")(0, [1], c.unit("SamplingParams")(max_tokens=1, **params))
        return list(torch.rand(4, generator=seq.generator).tolist())

    if draw() == draw():
        yield Finding("check_streams_are_own", "two requests without a seed have the same stream")
    if not c.facts.seed:
        return
    seed = c.rng.randrange(2**31)
    if draw(seed=seed) != draw(seed=seed):
        yield Finding("check_streams_are_own", f"seed {seed} gives two different streams")
    if draw(seed=seed) == draw(seed=seed + 1):
        yield Finding("check_streams_are_own", f"seeds {seed} and {seed + 1} give the same stream")
    if draw(seed=0) == draw():
        yield Finding("check_streams_are_own", "no seed means seed 0")
