"""The loop that turns requests into tokens, one step at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch

from . import config
from .facts import S
from .units import (
    BlockManager,
    CausalLM,
    Detokenizer,
    FinishReason,
    KVCache,
    SampledToken,
    SamplingParams,
    Scheduler,
    Sequence,
    TextCodec,
    load_weights,
    prepare_batch,
    sample,
)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step made for one sequence: a token, and the text that it decides."""

    seq: Sequence
    token: SampledToken
    text: str
    finish_reason: FinishReason | None


class LLMEngine:
    """Model, cache, scheduler and tokenizer of one deployment. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        model_dir: Path,
        *,
        expected_digest: str = config.MODEL_DIGEST,
        num_kv_blocks: int = config.NUM_KV_BLOCKS,
        prefill_chunk: int = config.PREFILL_CHUNK,
        max_concurrency: int = config.MAX_CONCURRENCY,
        num_threads: int | None = None,
    ) -> None:
        _check_memory(model_dir, num_kv_blocks)
        self.block_manager = BlockManager(num_kv_blocks, config.BLOCK_SIZE)
        self.scheduler = Scheduler(self.block_manager, max_concurrency, prefill_chunk)
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.codec = TextCodec(model_dir)
        self.model = CausalLM(load_weights(model_dir, expected_digest), KVCache(num_kv_blocks))
        self._detokenizers: dict[int, Detokenizer] = {}
        self._next_seq_id = itertools.count()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add_request(self, prompt_token_ids: list[int], params: SamplingParams) -> Sequence:
        """Queue a prompt. Raises ValueError `field: why` if no step could ever serve it."""
        _check_prompt(prompt_token_ids, params)
        seq = Sequence(next(self._next_seq_id), prompt_token_ids, params)
        self._detokenizers[seq.seq_id] = (
            self.codec.detokenizer(params.stop) if S.stop else self.codec.detokenizer()
        )
        self.scheduler.add(seq)
        return seq

    def abort(self, seq_id: int) -> None:
        """Forget a request and free its blocks; nothing happens if it has ended already."""
        self.scheduler.abort(seq_id)
        self._detokenizers.pop(seq_id, None)

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """Compute one batch; an output for every sequence that got a token (none while a prompt is under way)."""
        chunks = self.scheduler.schedule()
        if not chunks:
            return []
        logits = self.model.forward(prepare_batch(chunks, config.BLOCK_SIZE))
        self.scheduler.advance(chunks)
        sequences = [chunk.seq for chunk in chunks if chunk.samples]
        tokens = sample(logits, sequences)
        return [self._append(seq, token) for seq, token in zip(sequences, tokens, strict=True)]

    def generate(self, prompts: list[list[int]], params: SamplingParams) -> list[Sequence]:
        """Run `prompts` to their ends, all together."""
        sequences: list[Sequence] = []
        try:
            for prompt in prompts:
                sequences.append(self.add_request(prompt, params))
            while self.has_work:
                self.step()
        except BaseException:
            for seq in sequences:
                self.abort(seq.seq_id)
            raise
        return sequences

    def _append(self, seq: Sequence, token: SampledToken) -> StepOutput:
        """Add `token` to `seq`, and end the sequence if that was its last."""
        seq.token_ids.append(token.token_id)
        detokenizer = self._detokenizers[seq.seq_id]
        stopped = token.token_id in config.EOS_TOKEN_IDS and not seq.params.ignore_eos
        text = "" if stopped else detokenizer.push(token.token_id)
        if S.stop:
            stopped = stopped or detokenizer.stopped
        if stopped or seq.num_generated == seq.params.max_tokens:
            seq.finish_reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            text += detokenizer.flush()
            self.scheduler.finish(seq)
            del self._detokenizers[seq.seq_id]
        return StepOutput(seq, token, text, seq.finish_reason)


def _check_prompt(prompt_token_ids: list[int], params: SamplingParams) -> None:
    if not prompt_token_ids:
        raise ValueError("prompt: is empty; at least one token is needed")
    for token_id in prompt_token_ids:
        if not 0 <= token_id < config.VOCAB_SIZE:
            raise ValueError(
                f"prompt: token id {token_id} is not in the vocabulary of {config.VOCAB_SIZE}"
            )
    room = config.MAX_MODEL_LEN - len(prompt_token_ids)
    if room < 1:
        raise ValueError(
            f"prompt: {len(prompt_token_ids)} tokens leave no room for an answer; "
            f"prompt and answer together may have {config.MAX_MODEL_LEN} tokens"
        )
    if params.max_tokens > room:
        raise ValueError(
            f"max_tokens: {params.max_tokens} is more than the {room} that a prompt of "
            f"{len(prompt_token_ids)} tokens leaves of {config.MAX_MODEL_LEN}"
        )


def _check_memory(model_dir: Path, num_kv_blocks: int) -> None:
    """Refuse a cache that is too small for one request, or too large for this machine."""
    if num_kv_blocks * config.BLOCK_SIZE < config.MAX_MODEL_LEN:
        raise ValueError(
            f"num_kv_blocks: {num_kv_blocks} blocks of {config.BLOCK_SIZE} tokens hold "
            f"{num_kv_blocks * config.BLOCK_SIZE}, less than one request of {config.MAX_MODEL_LEN}"
        )
    token_bytes = 2 * config.NUM_LAYERS * config.NUM_KV_HEADS * config.HEAD_DIM * 4
    kv_bytes = num_kv_blocks * config.BLOCK_SIZE * token_bytes
    weight_bytes = sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
    memory = Path("/proc/meminfo").read_text(encoding="ascii")
    available = int(memory.split("MemAvailable:")[1].split()[0]) * 1024
    if weight_bytes + kv_bytes > available:
        raise ValueError(
            f"num_kv_blocks: {num_kv_blocks} blocks × {config.BLOCK_SIZE} tokens × {token_bytes} bytes "
            f"= {kv_bytes:,} bytes, with {weight_bytes:,} of weights more than the "
            f"{available:,} that this machine has available; fewer blocks serve fewer requests at once"
        )
