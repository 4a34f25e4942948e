"""Prompts for the numerics gate: lengths around every boundary, half of them words, half random tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metainfer.errors import RefusedError

PROMPT_COUNT = 16
NEW_TOKENS = 64
_TEXT = """A lighthouse keeper counts the ships that pass at night. On Monday there were 12, on Tuesday 7, and on
Wednesday the fog was so thick that he counted none at all. "What is the use of a lamp," he wrote in his book, "if
nobody can see it?" His daughter answered: the lamp is not for the ships that can see it.

def mean(values):
    # Return the arithmetic mean of a list of numbers.
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

| port   | ships | days |
| Aalen  |    19 |    3 |
| Bremen |   204 |    7 |

El faro se apagó a las 4:35. Am nächsten Morgen schrieb er: „Heute kein Schiff.“ 灯台守は夜に船を数える。
"""


def prompt_lengths(config: Mapping[str, Any], new_tokens: int) -> list[int]:
    """Sixteen lengths: 1, around one and several blocks, one longer than a prefill chunk, and in between.

    RefusedError if the engine's context has no room for them.
    """
    block, chunk = int(config["BLOCK_SIZE"]), int(config["PREFILL_CHUNK"])
    most = int(config["MAX_MODEL_LEN"]) - new_tokens
    if most < block + 1:
        raise RefusedError(
            f"a context of {config['MAX_MODEL_LEN']} tokens cannot hold a prompt of a block and one token with "
            f"{new_tokens} new ones; give the spec a larger max_model_len"
        )
    wanted = [1, block - 1, block, block + 1, 2 * block - 1, 2 * block, 2 * block + 1, 4 * block + 1, chunk + 9]
    wanted += [2, 3 * block + 5, 5 * block, 7, 11, block + 7, 6 * block + 4]
    return [max(1, min(length, most)) for length in wanted]


def make_prompts(model_folder: Path, config: Mapping[str, Any], seed: int, new_tokens: int) -> list[list[int]]:
    """The prompts as token ids, longest and shortest mixed. Every second one is text, the others any tokens."""
    rng = random.Random(f"prompts:{seed}")
    text = _encode(model_folder, _TEXT)
    text = [token for token in text if token < config["VOCAB_SIZE"]]
    prompts = []
    for index, length in enumerate(prompt_lengths(config, new_tokens)):
        if index % 2 and text:
            start = rng.randrange(len(text))
            prompts.append([text[(start + offset) % len(text)] for offset in range(length)])
        else:
            prompts.append([rng.randrange(config["VOCAB_SIZE"]) for _ in range(length)])
    rng.shuffle(prompts)
    return prompts


def _encode(model_folder: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False).ids]
