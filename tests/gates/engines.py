"""Tiny real engines, whole or with a fault put in, for the gates to judge."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from metainfer.checkpoint.facts import ModelFacts, read_facts
from metainfer.checkpoint.random_model import make_random_model
from metainfer.ckb.facts import Facts
from metainfer.files import folder_digest, sha256_file
from metainfer.generate.manifest import read_manifest
from metainfer.generate.scratch import assemble_scratch

CKB = Path(__file__).parents[2] / "ckb"
_SHARED = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
}  # fmt: skip
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": False, **_SHARED}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True, "head_dim": 24,
         **_SHARED}  # fmt: skip
FEATURES = ("chat", "completions", "streaming", "logprobs", "stop", "seed")


@dataclass(frozen=True)
class Tiny:
    """An engine of a few thousand weights, and the model folder that it was made for."""

    engine: Path
    model: Path

    @property
    def package(self) -> str:
        return read_manifest(self.engine).package

    @cached_property
    def facts(self) -> ModelFacts:
        return read_facts(self.model)

    def file(self, module: str) -> Path:
        return self.engine / self.package / module

    def with_fault(self, module: str, old: str, new: str, out: Path) -> Tiny:
        """A copy in which `old`, which must stand once in `module`, is `new`; its manifest is made to agree.

        So only the fault itself can turn a gate red.
        """
        copy = Tiny(out / self.engine.name, self.model)
        shutil.copytree(self.engine, copy.engine)
        path = copy.file(module)
        text = path.read_text("utf-8")
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {module}"
        path.write_text(text.replace(old, new), "utf-8")
        copy.sign()
        return copy

    def sign(self) -> None:
        """Make the manifest list the files as they are."""
        manifest = json.loads((self.engine / "manifest.json").read_bytes())
        manifest["files"] = {
            path.relative_to(self.engine).as_posix(): sha256_file(path)
            for path in sorted(self.engine.rglob("*"))
            if path.is_file() and path.name not in ("manifest.json", "evidence.json")
        }
        (self.engine / "manifest.json").write_text(json.dumps(manifest), "utf-8")


def make_tiny(folder: Path, config: dict[str, Any], weights: str, **features: bool) -> Tiny:
    """Generate an engine for a random model; `features` that are not given are on."""
    model = folder / "model"
    model.mkdir(parents=True)
    make_random_model(config, 1, model)
    found = read_facts(model)
    facts = Facts(
        architecture=found.architecture,
        attention_bias=found.attention_bias,
        qk_norm=found.qk_norm,
        tied_embeddings=found.tie_word_embeddings,
        sharded=found.sharded,
        has_chat_template=found.has_chat_template,
        platform="cpu-x86-avx2",
        weight_dtype=weights,  # type: ignore[arg-type]
        activation_dtype="fp32",
        kv_dtype="fp32",
        optimise="latency",
        **{name: features.get(name, True) for name in FEATURES},  # type: ignore[arg-type]
    )
    engine = folder / "tiny"
    assemble_scratch(CKB, facts, found, engine, folded=True, name="tiny", digest=folder_digest(model))
    return Tiny(engine, model)
