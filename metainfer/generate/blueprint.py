"""Where each unit of a dense decoder-only engine lives: the modules of the package, in import order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModuleSlot:
    """One file of the engine's package. A module imports only from modules above it."""

    name: str
    docstring: str
    units: tuple[str, ...]


MODULES: tuple[ModuleSlot, ...] = (
    ModuleSlot(
        "sequence",
        "A request as the engine sees it, from arrival to its last token.",
        ("FinishReason", "SamplingParams", "Sequence"),
    ),
    ModuleSlot(
        "block_manager",
        "Which block of the paged KV cache belongs to whom.",
        ("BlockManager",),
    ),
    ModuleSlot(
        "scheduler",
        "What the next step computes: decodes first, then prefill chunks in what is left of the budget.",
        ("Chunk", "Scheduler"),
    ),
    ModuleSlot(
        "sampler",
        "From logits to tokens, each request with its own random stream.",
        ("SampledToken", "sample"),
    ),
    ModuleSlot(
        "text",
        "Text in and out: chat template, tokenizer, incremental detokenisation.",
        ("TextCodec", "Detokenizer"),
    ),
    ModuleSlot(
        "kernels",
        "Builds and loads the C++ kernels.",
        ("load_kernels",),
    ),
    ModuleSlot(
        "layers",
        "The layers that know nothing of sequences: norm, rotary embedding, linear, MLP.",
        ("RMSNorm", "rope_tables", "apply_rope", "Linear", "SwiGLU"),
    ),
    ModuleSlot(
        "batch",
        "The flat tensors of one step.",
        ("Batch", "prepare_batch"),
    ),
    ModuleSlot(
        "attention",
        "Grouped-query attention over the paged KV cache.",
        ("KVCache", "paged_attention", "Attention"),
    ),
    ModuleSlot(
        "model",
        "The decoder: from token ids to logits.",
        ("DecoderLayer", "CausalLM"),
    ),
    ModuleSlot(
        "weights",
        "Loads the model folder, and only that folder.",
        ("load_weights",),
    ),
    ModuleSlot(
        "engine",
        "The loop that turns requests into tokens, one step at a time.",
        ("StepOutput", "LLMEngine"),
    ),
    ModuleSlot(
        "server",
        "The OpenAI-compatible HTTP server.",
        ("create_app",),
    ),
    ModuleSlot(
        "__main__",
        "The command line of the engine.",
        ("main",),
    ),
)

UNIT_MODULES: dict[str, str] = {unit: slot.name for slot in MODULES for unit in slot.units}
"""Unit name to the module that holds it."""

NEEDED_UNITS: tuple[str, ...] = tuple(UNIT_MODULES)
"""Every unit an engine is made of; coverage asks knowledge for each."""
