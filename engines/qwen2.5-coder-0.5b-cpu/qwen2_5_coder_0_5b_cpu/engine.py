"""The loop that turns requests into tokens, one step at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch

from . import config
from .attention import KVCache
from .batch import prepare_batch
from .block_manager import BlockManager
from .kernels import load_kernels
from .model import CausalLM
from .sampler import SampledToken, sample
from .scheduler import Scheduler
from .sequence import FinishReason, SamplingParams, Sequence
from .text import Detokenizer, TextCodec
from .weights import load_weights


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step made for one sequence: a token, and the text that it decides."""

    seq: Sequence
    token: SampledToken
    text: str
    finish_reason: FinishReason | None


class LLMEngine:
    """Model, cache, scheduler and tokenizer. Not thread-safe: one thread at a time."""

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
        load_kernels()  # a machine without a compiler is to be noticed now, not in the first request
        self.model = CausalLM(load_weights(model_dir, expected_digest), KVCache(num_kv_blocks))
        self._detokenizers: dict[int, Detokenizer] = {}
        self._next_seq_id = itertools.count()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def check_request(self, prompt_token_ids: list[int], params: SamplingParams) -> None:
        """Raise ValueError `field: why` for what no step could ever serve. Safe from any thread."""
        count, limit = len(prompt_token_ids), config.MAX_MODEL_LEN
        if not count:
            raise ValueError("prompt: is empty; at least one token is needed")
        if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= config.VOCAB_SIZE:
            raise ValueError(f"prompt: token ids must be from 0 to {config.VOCAB_SIZE - 1}")
        if count >= limit:
            raise ValueError(f"prompt: {count} tokens of at most {limit} leave none for an answer")
        if count + params.max_tokens > limit:
            raise ValueError(
                f"max_tokens: a prompt of {count} tokens leaves {limit - count} of {limit}, not {params.max_tokens}"
            )

    def add_request(self, prompt_token_ids: list[int], params: SamplingParams) -> Sequence:
        """Queue a prompt. Raises ValueError as `check_request` does."""
        self.check_request(prompt_token_ids, params)
        seq = Sequence(next(self._next_seq_id), prompt_token_ids, params)
        detokenizer = self.codec.detokenizer(params.stop)
        self._detokenizers[seq.seq_id] = detokenizer
        self.scheduler.add(seq)
        return seq

    def abort(self, seq_id: int) -> None:
        """Forget a request and free its blocks; nothing happens if it has ended already."""
        self.scheduler.abort(seq_id)
        self._detokenizers.pop(seq_id, None)

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """Compute one batch. A sequence whose prompt is still under way has no output yet."""
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
        stopped = stopped or detokenizer.stopped
        if stopped or seq.num_generated == seq.params.max_tokens:
            seq.finish_reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            text += detokenizer.flush()
            self.scheduler.finish(seq)
            del self._detokenizers[seq.seq_id]
        return StepOutput(seq, token, text, seq.finish_reason)


def _check_memory(model_dir: Path, num_kv_blocks: int) -> None:
    """Refuse a KV cache too small for one request, or too large for the machine."""
    size = num_kv_blocks * config.BLOCK_SIZE
    if size < config.MAX_MODEL_LEN:
        raise ValueError(
            f"num_kv_blocks: {num_kv_blocks} blocks of {config.BLOCK_SIZE} tokens hold {size}, "
            f"less than one request of {config.MAX_MODEL_LEN}"
        )
    token_bytes = 2 * config.NUM_LAYERS * config.NUM_KV_HEADS * config.HEAD_DIM * 4
    weight_bytes = sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
    memory = Path("/proc/meminfo").read_text(encoding="ascii")
    available = int(memory.split("MemAvailable:")[1].split()[0]) * 1024
    if weight_bytes + size * token_bytes > available:
        raise ValueError(
            f"num_kv_blocks: {size} tokens × {token_bytes} bytes = {size * token_bytes:,}, with "
            f"{weight_bytes:,} bytes of weights more than the {available:,} that are available; "
            f"use fewer blocks"
        )
