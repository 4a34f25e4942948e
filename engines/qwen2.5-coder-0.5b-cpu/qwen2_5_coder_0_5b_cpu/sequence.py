"""A request as the engine sees it, from arrival to its last token."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from .config import MAX_MODEL_LEN, VOCAB_SIZE

_MIN_TOP_P = 1e-6  # 0 would leave no token to choose
_MAX_STOP_STRINGS = 4
_MAX_LOGPROBS = 20


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop. Raises ValueError `field: what it must be`."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    ignore_eos: bool = False
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # how many alternatives to report beside the chosen token

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, int, 1, MAX_MODEL_LEN)
        _check("temperature", self.temperature, (int, float), 0, 2)
        _check("top_k", self.top_k, int, 0, VOCAB_SIZE)
        _check("top_p", self.top_p, (int, float), _MIN_TOP_P, 1)
        _check("ignore_eos", self.ignore_eos, bool, False, True)
        if self.seed is not None:
            _check("seed", self.seed, int, -(2**63), 2**63 - 1)
        if len(self.stop) > _MAX_STOP_STRINGS or not all(self.stop):
            raise ValueError(f"stop: at most {_MAX_STOP_STRINGS} strings, none of them empty")
        if self.logprobs is not None:
            _check("logprobs", self.logprobs, int, 0, _MAX_LOGPROBS)


def _check(field: str, value: Any, kind: type | tuple[type, ...], low: float, high: float) -> None:
    """Refuse what is not of the kind and between the bounds; NaN is between none."""
    right_kind = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    if not (right_kind and low <= value <= high):
        number = "a whole number" if kind is int else "a number"
        raise ValueError(f"{field}: must be {number} from {low} to {high}")


class Sequence:
    """One request: its tokens, its blocks in the KV cache, and its own random stream."""

    def __init__(self, seq_id: int, prompt_token_ids: list[int], params: SamplingParams) -> None:
        self.seq_id = seq_id
        self.params = params
        self.token_ids = list(prompt_token_ids)  # the prompt, then what was generated
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_cached_tokens = 0  # found in the prefix cache at admission
        self.num_computed_tokens = 0  # whose keys and values are in the cache
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []  # one per full computed block
        self.finish_reason: FinishReason | None = None
        self.generator = torch.Generator()
        self.generator.seed()
        if params.seed is not None:
            self.generator.manual_seed(params.seed)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def generated_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]
