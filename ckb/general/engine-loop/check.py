"""The engine loop around a toy model that remembers tokens where a real one keeps keys and values.

The toy's next token is a checksum of everything it finds in the cache through the block tables, so one wrong position,
block or chunk changes the answer. The reference knows no cache: it calls the checksum in a loop.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from metainfer.ckb.checks import Candidate, Finding

_ALPHABET = 40
"""The toy speaks the first so many tokens, and now and then an end-of-sequence token."""


def _next_token(context: list[int], eos: tuple[int, ...]) -> int:
    value = zlib.crc32(array("q", context).tobytes())
    if eos and value % 29 == 0:
        return eos[value // 29 % len(eos)]
    return 3 + value % _ALPHABET


class _ToyCache:
    """Stands for KVCache."""

    def __init__(self, num_blocks: int) -> None:
        self.slots: dict[int, int] = {}


class _ToyModel:
    """Stands for CausalLM; set `broken` and the next forward fails."""

    eos: tuple[int, ...] = ()
    vocab_size = 0
    block_size = 0

    def __init__(self, weights: dict[str, torch.Tensor], kv_cache: _ToyCache) -> None:
        self.cache = kv_cache
        self.broken = False
        self.steps = 0
        self.largest = 0
        self.tokens = 0
        self.grad_steps = 0

    def forward(self, batch: Any) -> torch.Tensor:
        if self.broken:
            raise RuntimeError("the toy is broken")
        self.steps += 1
        self.tokens += batch.token_ids.numel()
        self.largest = max(self.largest, batch.token_ids.numel())
        self.grad_steps += not torch.is_inference_mode_enabled()
        for slot, token in zip(batch.slot_mapping.tolist(), batch.token_ids.tolist(), strict=True):
            self.cache.slots[slot] = token
        starts = batch.query_start.tolist()
        logits = torch.zeros(batch.sample_rows.numel(), self.vocab_size)
        for row, where in enumerate(batch.sample_rows.tolist()):
            seq = max(i for i, start in enumerate(starts[:-1]) if start <= where)
            length, table = int(batch.context_lens[seq]), batch.block_tables[seq].tolist()
            slots = [table[p // self.block_size] * self.block_size + p % self.block_size for p in range(length)]
            logits[row, _next_token([self.cache.slots[slot] for slot in slots], self.eos)] = 9.0
        return logits


@contextmanager
def _engine(c: Candidate, **options: Any) -> Iterator[Any]:
    """The candidate's engine with the toy in place of the model, and a tokenizer made on the spot."""
    module = c.module(c.modules["LLMEngine"])
    config = c.config
    blocks = -(-config.MAX_MODEL_LEN // config.BLOCK_SIZE)
    options = {"num_kv_blocks": blocks + 2, "prefill_chunk": 13, "max_concurrency": 3} | options
    toys: dict[str, Any] = {
        "load_weights": lambda folder, digest: {},
        "load_kernels": lambda: None,
        "KVCache": _ToyCache,
        "CausalLM": type(
            "ToyModel",
            (_ToyModel,),
            {"eos": config.EOS_TOKEN_IDS, "vocab_size": config.VOCAB_SIZE, "block_size": config.BLOCK_SIZE},
        ),
    }
    originals = {name: getattr(module, name) for name in toys}
    try:
        for name, toy in toys.items():
            setattr(module, name, toy)
        yield c.unit("LLMEngine")(_write_tokenizer(c.tmp_path / f"loop-{c.rng.getrandbits(60)}"), **options)
    finally:
        for name, original in originals.items():
            setattr(module, name, original)


def _write_tokenizer(folder: Path) -> Path:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True)
    pieces = ["<|a|>", "<|b|>", "<|c|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in pieces[:3]])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _params(c: Candidate, **params: Any) -> Any:
    return c.unit("SamplingParams")(**({"temperature": 0.0} | params))


def _reference(engine: Any, prompt: list[int], params: Any, eos: tuple[int, ...]) -> tuple[list[int], str, str]:
    """Token by token without any cache: generated tokens, their text up to a stop, and why it ended."""
    tokens = list(prompt)
    stops = getattr(params, "stop", ())
    while True:
        tokens.append(_next_token(tokens, eos))
        made = tokens[len(prompt) :]
        if made[-1] in eos and not params.ignore_eos:
            return made, engine.codec.decode(made[:-1]), "stop"
        text = engine.codec.decode(made)
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            return made, text[: min(found)], "stop"
        if len(made) == params.max_tokens:
            return made, text, "length"


def check_answers_equal_a_plain_loop(c: Candidate) -> Iterator[Finding]:
    """Requests that share beginnings come at random times, some are aborted; every answer is the reference's."""
    eos = tuple(c.config.EOS_TOKEN_IDS)
    with _engine(c) as engine:
        longest = min(c.config.MAX_MODEL_LEN // 2, 70)
        shared = [3 + c.rng.randrange(_ALPHABET) for _ in range(longest)]
        expected: dict[int, tuple[list[int], str, str]] = {}
        texts: dict[int, str] = {}
        sequences: dict[int, Any] = {}
        for _ in range(600):
            if len(sequences) < 25 and c.rng.random() < 0.3:
                prompt = shared[: c.rng.randint(1, longest)]
                prompt = [*prompt[:-1], 3 + c.rng.randrange(_ALPHABET)] if c.rng.random() < 0.5 else prompt
                params = _random_params(c)
                seq = engine.add_request(prompt, params)
                sequences[seq.seq_id], texts[seq.seq_id] = seq, ""
                expected[seq.seq_id] = _reference(engine, prompt, params, eos)
            if sequences and c.rng.random() < 0.02:
                victim = c.rng.choice(list(sequences))
                engine.abort(victim)
                if sequences[victim].finish_reason is None:
                    yield Finding("check_answers_equal_a_plain_loop", "an aborted request has no finish reason")
                expected.pop(victim, None)
            for output in engine.step() if engine.has_work else []:
                texts[output.seq.seq_id] += output.text
                told = (output.token.token_id, output.finish_reason)
                if told != (output.seq.token_ids[-1], output.seq.finish_reason):
                    yield Finding("check_answers_equal_a_plain_loop", "an output and its sequence disagree")
        for _ in range(2000):
            for output in engine.step() if engine.has_work else []:
                texts[output.seq.seq_id] += output.text
        for seq_id, (tokens, text, reason) in expected.items():
            seq = sequences[seq_id]
            seen = (seq.generated_token_ids, texts[seq_id], seq.finish_reason)
            if seen != (tokens, text, reason):
                yield Finding(
                    "check_answers_equal_a_plain_loop",
                    f"a prompt of {seq.num_prompt_tokens} tokens, {seq.num_cached_tokens} from the cache, "
                    f"{seq.params}: {seen}, not {(tokens, text, reason)}",
                )
                return
        manager = engine.block_manager
        if manager.num_used or manager.num_free + manager.num_cached != manager.num_blocks:
            yield Finding("check_answers_equal_a_plain_loop", f"idle, and {manager.num_used} blocks are in use")
        if engine.model.largest > 13:
            yield Finding("check_answers_equal_a_plain_loop", f"a step computed {engine.model.largest} tokens, not 13")
        if engine.model.grad_steps:
            yield Finding("check_answers_equal_a_plain_loop", "steps run outside of inference mode")
        if expected and not any(seq.num_cached_tokens for seq in sequences.values()):
            yield Finding("check_answers_equal_a_plain_loop", "no prompt is ever found in the prefix cache")


def _random_params(c: Candidate) -> Any:
    more: dict[str, Any] = {}
    if c.facts.stop:
        # The second character never comes: such a stop string is held back again and again, and never complete.
        more["stop"] = tuple(
            chr(33 + c.rng.randrange(_ALPHABET)) + c.rng.choice(("", "~", "~")) for _ in range(c.rng.choice((0, 1, 4)))
        )
    room = c.config.MAX_MODEL_LEN - min(c.config.MAX_MODEL_LEN // 2, 70)
    return _params(c, max_tokens=c.rng.randint(1, min(30, room)), ignore_eos=c.rng.random() < 0.5, **more)


def check_each_token_is_computed_once(c: Candidate) -> Iterator[Finding]:
    """Nothing is computed twice, what the cache holds not at all, and the last token of an answer never."""
    with _engine(c) as engine:
        prompts = [[3 + c.rng.randrange(_ALPHABET) for _ in range(c.rng.randint(1, 40))] for _ in range(5)]
        sequences = engine.generate([*prompts, prompts[0]], _params(c, max_tokens=6, ignore_eos=True))
        needed = sum(seq.num_tokens - 1 - seq.num_cached_tokens for seq in sequences)
        if engine.model.tokens != needed:
            yield Finding(
                "check_each_token_is_computed_once", f"{engine.model.tokens} tokens are computed where {needed} suffice"
            )


def check_every_end_token_ends(c: Candidate) -> Iterator[Finding]:
    """Each of EOS_TOKEN_IDS ends an answer and leaves no text, and none does with ignore_eos."""
    eos = tuple(c.config.EOS_TOKEN_IDS)
    with _engine(c) as engine:
        for token_id in eos:
            prompt = _prompt_that_ends(c, token_id, eos)
            seq = engine.generate([prompt, prompt], _params(c, max_tokens=5))[1]
            if (seq.generated_token_ids, seq.finish_reason) != ([token_id], "stop"):
                yield Finding("check_every_end_token_ends", f"token {token_id} does not end the answer")
            ignoring = engine.generate([prompt], _params(c, max_tokens=5, ignore_eos=True))[0]
            if (ignoring.num_generated, ignoring.finish_reason) != (5, "length"):
                yield Finding("check_every_end_token_ends", f"token {token_id} ends an answer that ignores it")


def _prompt_that_ends(c: Candidate, token_id: int, eos: tuple[int, ...]) -> list[int]:
    while True:
        prompt = [3 + c.rng.randrange(_ALPHABET) for _ in range(3)]
        if _next_token(prompt, eos) == token_id:
            return prompt


def check_refuses_what_no_step_can_serve(c: Candidate) -> Iterator[Finding]:
    """Wrong prompts and lengths are refused by name, and the engine goes on."""
    config = c.config
    longest = config.MAX_MODEL_LEN
    bad: list[tuple[str, list[int], int]] = [
        ("prompt", [], 1),
        ("prompt", [config.VOCAB_SIZE], 1),
        ("prompt", [3, -1], 1),
        ("prompt", [3] * longest, 1),
        ("prompt", [3] * (longest + 5), 1),
        ("max_tokens", [3] * (longest - 2), 3),
    ]
    with _engine(c) as engine:
        for field, prompt, max_tokens in bad:
            try:
                engine.add_request(prompt, _params(c, max_tokens=max_tokens))
            except ValueError as error:
                if not str(error).startswith(f"{field}: "):
                    yield Finding("check_refuses_what_no_step_can_serve", f"refused without {field!r}: {error}")
            else:
                message = f"{len(prompt)} tokens and max_tokens {max_tokens} are accepted"
                yield Finding("check_refuses_what_no_step_can_serve", message)
        if engine.has_work:
            yield Finding("check_refuses_what_no_step_can_serve", "a refused request stays in the queue")
            return
        seq = engine.generate([[3] * (longest - 2)], _params(c, max_tokens=2, ignore_eos=True))[0]
        if seq.num_tokens != longest or seq.finish_reason != "length":
            yield Finding("check_refuses_what_no_step_can_serve", "a request of exactly MAX_MODEL_LEN is not served")


def check_refuses_impossible_settings(c: Candidate) -> Iterator[Finding]:
    """Settings that could never work are refused at start, with the numbers."""
    too_few = -(-c.config.MAX_MODEL_LEN // c.config.BLOCK_SIZE) - 1
    for options in (
        {"num_kv_blocks": too_few},
        {"num_kv_blocks": 0},
        {"num_kv_blocks": 10**12},
        {"max_concurrency": 0},
        {"max_concurrency": 14},
        {"prefill_chunk": 0},
    ):
        try:
            with _engine(c, **options):
                pass
        except ValueError as error:
            if not any(character.isdigit() for character in str(error)):
                yield Finding("check_refuses_impossible_settings", f"{options}: refused without numbers: {error}")
        else:
            yield Finding("check_refuses_impossible_settings", f"{options} are accepted")


def check_failure_loses_nothing(c: Candidate) -> Iterator[Finding]:
    """A step that fails raises; with everyone aborted all blocks are back, and nothing wrong is cached."""
    eos = tuple(c.config.EOS_TOKEN_IDS)
    with _engine(c) as engine:
        prompt = [3 + c.rng.randrange(_ALPHABET) for _ in range(min(40, c.config.MAX_MODEL_LEN // 2))]
        params = _params(c, max_tokens=4)
        sequences = [engine.add_request(prompt, params) for _ in range(2)]
        engine.step()
        engine.model.broken = True
        try:
            engine.step()
        except RuntimeError:
            pass
        else:
            yield Finding("check_failure_loses_nothing", "a step whose model fails does not raise")
        for seq in sequences:
            engine.abort(seq.seq_id)
        if engine.has_work or engine.block_manager.num_used:
            yield Finding("check_failure_loses_nothing", "after a failed step and aborts something is still in use")
        engine.model.broken = False
        seq = engine.generate([prompt], params)[0]
        if seq.generated_token_ids != _reference(engine, prompt, params, eos)[0]:
            yield Finding("check_failure_loses_nothing", "after a failed step the same prompt has another answer")


def check_generate_is_all_or_nothing(c: Candidate) -> Iterator[Finding]:
    """One wrong prompt among several: an error, and nobody left in the queue. No work: no step."""
    with _engine(c) as engine:
        try:
            engine.generate([[3], []], _params(c, max_tokens=2))
        except ValueError:
            pass
        else:
            yield Finding("check_generate_is_all_or_nothing", "an empty prompt among others is accepted")
        if engine.has_work:
            yield Finding("check_generate_is_all_or_nothing", "prompts beside a wrong one stay in the queue")
        if engine.generate([], _params(c, max_tokens=2)) != [] or engine.step() != []:
            yield Finding("check_generate_is_all_or_nothing", "no prompts do not give no answers")
