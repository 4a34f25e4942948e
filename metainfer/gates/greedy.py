"""What transformers answers greedily, for the serving gate to compare with; a process of its own.

    python -m metainfer.gates.greedy PLAN OUT

An own argmax loop over fp32 logits: `generate` would apply what the generation config says of penalties. The chat
template and the tokenizer are transformers' own too, so that the engine's are compared with others than its own.
"""

from __future__ import annotations

import json
import random
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metainfer.gates.reference import Reference

_CANDIDATES = 4096
_BATCH = 256
_SURE = 1e-2
"""A first token must lead by this much to count on it."""


class Greedy:
    """The reference with its tokenizer."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        from transformers import AutoTokenizer

        self.plan = plan
        self.reference = Reference(plan["model"], plan["threads"])
        self.tokenizer: Any = AutoTokenizer.from_pretrained(plan["model"], local_files_only=True)

    def chat_ids(self, content: str) -> list[int]:
        """Prompt of one user message, by the model's chat template."""
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return [int(token) for token in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def answer(self, prompt: Sequence[int], new_tokens: int) -> dict[str, Any]:
        """Greedy tokens up to an end-of-sequence or the first tie, their log-probabilities, and their text."""
        torch = self.reference.torch
        tokens: list[int] = []
        logprobs: list[float] = []
        end = "length"
        past: dict[str, Any] = {}
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            while len(tokens) < new_tokens:
                output = self.reference.model(input_ids=ids, use_cache=True, logits_to_keep=1, **past)
                past = {self.reference.cache_name: output.past_key_values}
                row = output.logits[0, -1]
                best = row.topk(2).values
                if float(best[0] - best[1]) < self.plan["tie_margin"]:
                    end = "tie"
                    break
                token = int(row.argmax())
                logprobs.append(float(row.double().log_softmax(-1)[token]))
                tokens.append(token)
                if token in self.plan["eos_token_ids"]:
                    end = "stop"
                    break
                ids = torch.tensor([[token]])
        shown = tokens[:-1] if end == "stop" else tokens
        text = self.tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return {"prompt": list(prompt), "tokens": tokens, "logprobs": logprobs, "end": end, "text": text}

    def endings(self, make: Callable[[random.Random], list[int]], seed: int) -> list[dict[str, Any]]:
        """Prompts of one length whose first token is an end-of-sequence: one for each of these that can be found."""
        torch = self.reference.torch
        rng = random.Random(f"endings:{seed}")
        found: dict[int, dict[str, Any]] = {}
        for _ in range(_CANDIDATES // _BATCH):
            prompts = [make(rng) for _ in range(_BATCH)]
            width = max(set(map(len, prompts)), key=[len(p) for p in prompts].count)
            prompts = [prompt for prompt in prompts if len(prompt) == width]
            with torch.inference_mode():
                output = self.reference.model(input_ids=torch.tensor(prompts), use_cache=False, logits_to_keep=1)
            best = output.logits[:, -1].topk(2)
            for prompt, tokens, values in zip(prompts, best.indices.tolist(), best.values.tolist(), strict=True):
                if tokens[0] in self.plan["eos_token_ids"] and values[0] - values[1] > _SURE:
                    found.setdefault(tokens[0], {"prompt": prompt, "token": tokens[0]})
            if len(found) == len(self.plan["eos_token_ids"]):
                break
        return list(found.values())


def _run(plan_file: str, out_file: str) -> None:
    plan = json.loads(Path(plan_file).read_bytes())
    greedy = Greedy(plan)
    rng = random.Random(f"greedy:{plan['seed']}")
    out: dict[str, Any] = {"chat": None, "completion": None, "endings": []}
    if plan["chat"]:
        out["chat"] = greedy.answer(greedy.chat_ids(plan["chat_text"]), plan["chat_tokens"])
    if plan["completions"]:
        ids = greedy.tokenizer(plan["completion_text"], add_special_tokens=False)["input_ids"]
        out["completion"] = greedy.answer([int(token) for token in ids], plan["completion_tokens"])
    if plan["search_endings"] and plan["completions"]:
        vocab = plan["vocab_size"]
        out["endings"] = greedy.endings(lambda r: [r.randrange(vocab) for _ in range(3)], plan["seed"])
    elif plan["search_endings"]:
        letters = string.ascii_lowercase
        texts: dict[tuple[int, ...], str] = {}

        def make(r: random.Random) -> list[int]:
            text = "".join(r.choices(letters, k=4))
            ids = greedy.chat_ids(text)
            texts[tuple(ids)] = text
            return ids

        out["endings"] = [e | {"text": texts[tuple(e["prompt"])]} for e in greedy.endings(make, rng.getrandbits(16))]
    Path(out_file).write_text(json.dumps(out), encoding="utf-8")


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2])
