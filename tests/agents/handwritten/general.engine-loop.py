"""From requests to tokens, a step at a time."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch

from .config import (
    BLOCK_SIZE,
    EOS_TOKEN_IDS,
    HEAD_DIM,
    MAX_CONCURRENCY,
    MAX_MODEL_LEN,
    MODEL_DIGEST,
    NUM_KV_BLOCKS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    PREFILL_CHUNK,
    VOCAB_SIZE,
)
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
    load_kernels,
    load_weights,
    prepare_batch,
    sample,
)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One token of one sequence, the text that it decided, and why the sequence ended, if it did."""

    seq: Sequence
    token: SampledToken
    text: str
    finish_reason: FinishReason | None


class LLMEngine:
    """The model, its cache and its queue. For one thread at a time."""

    def __init__(
        self,
        model_dir: Path,
        *,
        expected_digest: str = MODEL_DIGEST,
        num_kv_blocks: int = NUM_KV_BLOCKS,
        prefill_chunk: int = PREFILL_CHUNK,
        max_concurrency: int = MAX_CONCURRENCY,
        num_threads: int | None = None,
    ) -> None:
        _check_cache(num_kv_blocks, model_dir)
        self.block_manager = BlockManager(num_kv_blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(self.block_manager, max_concurrency, prefill_chunk)
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.codec = TextCodec(model_dir)
        load_kernels()
        self.model = CausalLM(load_weights(model_dir, expected_digest), KVCache(num_kv_blocks))
        self._detokenizers: dict[int, Detokenizer] = {}
        self._ids = itertools.count()

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return self.scheduler.has_work

    def check_request(self, prompt_token_ids: list[int], params: SamplingParams) -> None:
        """ValueError `field: why` for what no step could serve. From any thread."""
        length = len(prompt_token_ids)
        if not length:
            raise ValueError("prompt: holds no token")
        if any(not 0 <= token < VOCAB_SIZE for token in prompt_token_ids):
            raise ValueError(f"prompt: holds a token that is not in 0 to {VOCAB_SIZE - 1}")
        if length >= MAX_MODEL_LEN:
            raise ValueError(f"prompt: has {length} tokens, and with an answer at most {MAX_MODEL_LEN} are possible")
        if length + params.max_tokens > MAX_MODEL_LEN:
            raise ValueError(
                f"max_tokens: {params.max_tokens} behind a prompt of {length} is more than {MAX_MODEL_LEN} in all"
            )

    def add_request(self, prompt_token_ids: list[int], params: SamplingParams) -> Sequence:
        """Queue a request."""
        self.check_request(prompt_token_ids, params)
        seq = Sequence(next(self._ids), prompt_token_ids, params)
        self._detokenizers[seq.seq_id] = self.codec.detokenizer(params.stop)
        self.scheduler.add(seq)
        return seq

    def abort(self, seq_id: int) -> None:
        """Take a request off; nothing happens if there is none. Between steps only."""
        self.scheduler.abort(seq_id)
        self._detokenizers.pop(seq_id, None)

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """Compute once, and give each sequence that reached its end its next token."""
        chunks = self.scheduler.schedule()
        if not chunks:
            return []
        logits = self.model.forward(prepare_batch(chunks, BLOCK_SIZE))
        self.scheduler.advance(chunks)
        sequences = [chunk.seq for chunk in chunks if chunk.samples]
        return [self._append(seq, token) for seq, token in zip(sequences, sample(logits, sequences), strict=True)]

    def generate(self, prompts: list[list[int]], params: SamplingParams) -> list[Sequence]:
        """Answer all prompts together."""
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
        seq.token_ids.append(token.token_id)
        detokenizer = self._detokenizers[seq.seq_id]
        text = ""
        if token.token_id in EOS_TOKEN_IDS and not seq.params.ignore_eos:
            seq.finish_reason = FinishReason.STOP
        else:
            text = detokenizer.push(token.token_id)
            if detokenizer.stopped:
                seq.finish_reason = FinishReason.STOP
            elif seq.num_generated >= seq.params.max_tokens:
                seq.finish_reason = FinishReason.LENGTH
        if seq.finish_reason is not None:
            text += detokenizer.flush()
            del self._detokenizers[seq.seq_id]
            self.scheduler.finish(seq)
        return StepOutput(seq, token, text, seq.finish_reason)


def _check_cache(num_kv_blocks: int, model_dir: Path) -> None:
    """Room for one longest request at least, and no more than there is memory."""
    tokens = num_kv_blocks * BLOCK_SIZE
    if tokens < MAX_MODEL_LEN:
        raise ValueError(
            f"num_kv_blocks: {num_kv_blocks} blocks of {BLOCK_SIZE} hold {tokens} tokens, "
            f"and one request may have {MAX_MODEL_LEN}"
        )
    cache = tokens * 2 * NUM_LAYERS * NUM_KV_HEADS * HEAD_DIM * torch.float32.itemsize
    weights = sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))
    available = _available_bytes()
    if cache + weights > available:
        raise ValueError(
            f"num_kv_blocks: a cache of {cache:,} bytes and weights of {weights:,} need {cache + weights:,}, "
            f"and {available:,} are available"
        )


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) << 10
    raise RuntimeError("/proc/meminfo does not say how much memory is available")
