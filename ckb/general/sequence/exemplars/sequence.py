"""A request as the engine sees it, from arrival to its last token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch

from .facts import S

_MAX_SEED = 2**63
if S.stop:
    _MAX_STOP_STRINGS = 4
if S.logprobs:
    _MAX_TOP_LOGPROBS = 20


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
    if S.seed:
        seed: int | None = None
    if S.stop:
        stop: tuple[str, ...] = ()
    if S.logprobs:
        logprobs: int | None = None  # how many alternatives to report beside the chosen token

    def __post_init__(self) -> None:
        _require(_is_int(self.max_tokens, 1), "max_tokens", "must be a whole number of at least 1")
        _require(_is_number(self.temperature, 0.0, 2.0), "temperature", "must be between 0 and 2")
        _require(_is_int(self.top_k, 0), "top_k", "must be a whole number, or 0 for off")
        _require(_is_number(self.top_p, 0.0, 1.0) and self.top_p > 0, "top_p", "must be above 0 and at most 1")
        _require(isinstance(self.ignore_eos, bool), "ignore_eos", "must be true or false")
        if S.seed:
            in_range = self.seed is None or _is_int(self.seed, -_MAX_SEED, _MAX_SEED - 1)
            _require(in_range, "seed", "must be a 64-bit whole number")
        if S.stop:
            few = len(self.stop) <= _MAX_STOP_STRINGS and all(self.stop)
            _require(few, "stop", f"must be at most {_MAX_STOP_STRINGS} strings, none of them empty")
        if S.logprobs:
            in_range = self.logprobs is None or _is_int(self.logprobs, 0, _MAX_TOP_LOGPROBS)
            _require(in_range, "logprobs", f"must be a whole number from 0 to {_MAX_TOP_LOGPROBS}")


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
        if S.seed:
            if params.seed is None:
                self.generator.seed()
            else:
                self.generator.manual_seed(params.seed)
        else:
            self.generator.seed()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def generated_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise ValueError(f"{field}: {rule}")


def _is_int(value: object, low: int, high: int | None = None) -> bool:
    """Whether `value` is an int (no bool, no float) within the bounds."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return is_int and low <= value and (high is None or value <= high)


def _is_number(value: object, low: float, high: float) -> bool:
    """Whether `value` is a finite int or float within the bounds; NaN never is."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and low <= value <= high
