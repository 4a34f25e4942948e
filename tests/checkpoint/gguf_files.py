"""GGUF files as the gguf package writes them: tiny, with random weights in any storage type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@dataclass
class Gguf:
    """A GGUF to be written. `quantise` chooses the storage type by tensor name; `values` is what each should hold."""

    architecture: str = "qwen2"
    tied: bool = False
    quantise: Callable[[str, tuple[int, ...]], str] = lambda name, shape: "Q8_0" if len(shape) > 1 else "F32"
    fields: dict[str, Any] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    hidden = 64
    ffn = 256
    layers = 2
    heads = 4
    kv_heads = 2

    @property
    def head_dim(self) -> int:
        return 32 if self.architecture == "qwen3" else 16

    def shapes(self) -> dict[str, tuple[int, ...]]:
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(self.tokens), self.hidden)}
        for layer in range(self.layers):
            own: dict[str, tuple[int, ...]] = {
                "attn_norm.weight": (self.hidden,),
                "attn_q.weight": (width, self.hidden),
                "attn_k.weight": (kv_width, self.hidden),
                "attn_v.weight": (kv_width, self.hidden),
                "attn_output.weight": (self.hidden, width),
                "ffn_norm.weight": (self.hidden,),
                "ffn_gate.weight": (self.ffn, self.hidden),
                "ffn_up.weight": (self.ffn, self.hidden),
                "ffn_down.weight": (self.hidden, self.ffn),
            }
            if self.architecture == "qwen2":
                own |= {"attn_q.bias": (width,), "attn_k.bias": (kv_width,), "attn_v.bias": (kv_width,)}
            else:
                own |= {"attn_q_norm.weight": (self.head_dim,), "attn_k_norm.weight": (self.head_dim,)}
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
        shapes["output_norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes["output.weight"] = (len(self.tokens), self.hidden)
        return shapes

    def write(self, path: Path, seed: int = 0) -> Path:
        from gguf import GGMLQuantizationType, GGUFWriter
        from gguf.quants import dequantize

        rng = np.random.default_rng(seed)
        writer = GGUFWriter(path, self.architecture)
        self._write_fields(writer)
        for name, shape in self.shapes().items():
            kind = GGMLQuantizationType[self.quantise(name, shape)]
            raw = quantised_at_random(rng, shape, kind)
            self.values[name] = dequantize(raw, kind).reshape(shape)
            if kind == GGMLQuantizationType.F32:
                writer.add_tensor(name, raw.view(np.float32).reshape(shape))
            else:
                writer.add_tensor(name, raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _write_fields(self, writer: Any) -> None:
        own: dict[str, Any] = {
            "block_count": self.layers,
            "context_length": 128,
            "embedding_length": self.hidden,
            "feed_forward_length": self.ffn,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
        }
        if self.architecture == "qwen3":
            own |= {"attention.key_length": self.head_dim, "attention.value_length": self.head_dim}
        fields: dict[str, Any] = {f"{self.architecture}.{key}": value for key, value in own.items()}
        fields |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.token_type": self.types,
            "tokenizer.ggml.merges": self.merges,
            "tokenizer.ggml.eos_token_id": self.tokens.index("<|im_end|>"),
            "tokenizer.ggml.padding_token_id": self.tokens.index("<|endoftext|>"),
            "tokenizer.chat_template": TEMPLATE,
        }
        for key, value in {**fields, **self.fields}.items():
            if value is None:
                continue
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_array(key, value)


def quantised_at_random(rng: np.random.Generator, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    """Stored bytes [rows, row bytes] uint8 of random values; the blocks of k-quants are random themselves."""
    from gguf.quants import quantize

    values = rng.normal(0, 0.3, shape).astype(np.float32)
    if kind.name == "F32":
        return values.reshape(1, -1).view(np.uint8) if len(shape) == 1 else values.view(np.uint8)
    if kind.name not in ("Q4_K", "Q6_K"):
        return quantize(values, kind)
    block, scales = {"Q4_K": (144, (0, 2)), "Q6_K": (210, (208,))}[kind.name]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // 256, block), dtype=np.uint8)
    for at in scales:  # the half-precision scales, so that values are finite and of a sensible size
        scale = rng.uniform(0.0005, 0.002, blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


@functools.cache
def byte_names() -> list[str]:
    """The characters that byte-level BPE writes for the bytes 0 to 255, from the table in transformers."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table = bytes_to_unicode()
    return [table[byte] for byte in range(256)]


@pytest.fixture
def gguf() -> Gguf:
    merged = ["he", "ll", "llo", "hello", "Ġw"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    added = ["<tool>"]
    padding = [f"[PAD{index}]" for index in range(7)]
    return Gguf(
        tokens=[*byte_names(), *merged, *special, *added, *padding],
        types=[1] * (256 + len(merged)) + [3] * len(special) + [4] * len(added) + [5] * len(padding),
        merges=["h e", "l l", "ll o", "he llo", "Ġ w"],
    )
