"""Prompts as token ids: real text, the same for every subject, and never the same beginning twice.

Engines keep the keys and values of prompts they have seen. A prompt sent twice would measure that cache, so each one
is a window of the text that begins at a place of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from metainfer.bench.subject import SubjectError

_TEXT = Path(__file__).with_name("prompt_text.txt")
_MIN_TEXT_TOKENS = 256


class PromptMaker:
    """Yields prompts for one model. Equal arguments give equal prompts in the same order."""

    def __init__(self, model_dir: Path, vocab_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._random = random.Random(seed)
        self._tokenizer = _load_tokenizer(model_dir)
        text = self._tokenizer.encode(_TEXT.read_text(encoding="utf-8")).ids if self._tokenizer else []
        usable = len(text) >= _MIN_TEXT_TOKENS and max(text) < vocab_size
        self._text: list[int] = text if usable else []
        self._starts = self._random.sample(range(len(self._text)), len(self._text))

    @property
    def kind(self) -> str:
        """What the prompts are made of, for the report."""
        return "windows of a text" if self._text else "random token ids"

    def take(self, tokens: int) -> list[int]:
        """A prompt of exactly `tokens` ids that no earlier one began like. Raises SubjectError when all are used."""
        if tokens < 1:
            raise ValueError("a prompt has at least one token")
        if not self._text:
            return [self._random.randrange(self._vocab_size) for _ in range(tokens)]
        if not self._starts:
            raise SubjectError(f"all {len(self._text)} places of the prompt text are used; ask for fewer repeats")
        start = self._starts.pop()
        return [self._text[(start + offset) % len(self._text)] for offset in range(tokens)]

    def agreeing_prefix(self, token_ids: Sequence[int], text: str) -> int | None:
        """How many of `token_ids` another subject's `text` begins with; None without a tokenizer."""
        if self._tokenizer is None:
            return None
        # Engines differ in whether special tokens show in text; the comparison is about tokens.
        return max(agreeing_prefix(token_ids, text, self._decoder(skip)) for skip in (True, False))

    def _decoder(self, skip_special: bool) -> Callable[[list[int]], str]:
        tokenizer = self._tokenizer
        return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=skip_special))


def agreeing_prefix(token_ids: Sequence[int], text: str, decode: Callable[[list[int]], str]) -> int:
    """The longest beginning of `token_ids` whose text `text` begins with.

    A character that is cut off at the end of a beginning decodes to U+FFFD, which is left out of the comparison.
    """
    ids = list(token_ids)
    for count in range(1, len(ids) + 1):
        begun = decode(ids[:count])
        if not text.startswith(begun) and not text.startswith(begun.rstrip("\ufffd")):
            return count - 1
    return len(ids)


def _load_tokenizer(model_dir: Path) -> Any:
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))
