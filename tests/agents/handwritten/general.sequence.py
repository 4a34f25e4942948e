"""A request as it is asked for, and as it goes along."""

import enum
from dataclasses import dataclass

import torch

from .config import MAX_MODEL_LEN, VOCAB_SIZE

_MAX_TEMPERATURE = 2
_MAX_STOPS = 4
_MAX_ALTERNATIVES = 20
_SEEDS = 1 << 63


class FinishReason(enum.StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. ValueError `field: what it must be` for what is out of range."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    ignore_eos: bool = False
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _require(_is_whole(self.max_tokens, 1, MAX_MODEL_LEN), f"max_tokens: a whole number, 1 to {MAX_MODEL_LEN}")
        _require(
            _is_number(self.temperature) and 0 <= self.temperature <= _MAX_TEMPERATURE,
            f"temperature: a number from 0 to {_MAX_TEMPERATURE}",
        )
        _require(_is_whole(self.top_k, 0, VOCAB_SIZE), f"top_k: a whole number, 0 to {VOCAB_SIZE}")
        _require(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p: a number above 0, up to 1")
        _require(type(self.ignore_eos) is bool, "ignore_eos: true or false")
        _require(self.seed is None or _is_whole(self.seed, -_SEEDS, _SEEDS - 1), "seed: a whole number of 64 bits")
        _require(
            isinstance(self.stop, tuple)
            and len(self.stop) <= _MAX_STOPS
            and all(isinstance(text, str) and text for text in self.stop),
            f"stop: at most {_MAX_STOPS} texts, none of them empty",
        )
        _require(
            self.logprobs is None or _is_whole(self.logprobs, 0, _MAX_ALTERNATIVES),
            f"logprobs: a whole number, 0 to {_MAX_ALTERNATIVES}",
        )


class Sequence:
    """The tokens of a request, prompt first, and where its keys and values are."""

    def __init__(self, seq_id: int, prompt_token_ids: list[int], params: SamplingParams) -> None:
        self.seq_id = seq_id
        self.params = params
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_cached_tokens = 0
        self.num_computed_tokens = 0
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []
        self.finish_reason: FinishReason | None = None
        self.generator = torch.Generator(device="cpu")
        if params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(params.seed)

    @property
    def num_tokens(self) -> int:
        """Prompt and generated."""
        return len(self.token_ids)

    @property
    def num_generated(self) -> int:
        """Tokens behind the prompt."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def generated_token_ids(self) -> list[int]:
        """The tokens behind the prompt, in a list of their own."""
        return self.token_ids[self.num_prompt_tokens :]


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
