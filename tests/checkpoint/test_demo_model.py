"""The demo's own model: 0.5 billion parameters from its GGUF, within the memory of a small machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from metainfer.checkpoint.facts import read_facts
from metainfer.checkpoint.gguf_file import GgufFile
from metainfer.checkpoint.wheels import gguf_file
from metainfer.commands.context import cache_root
from metainfer.files import folder_digest
from metainfer.progress import Silent
from metainfer.spec.load import load_spec

SPECS = Path(__file__).resolve().parents[2] / "specs"
DIGEST = "sha256:b1b012453974156a85947a15b7ecd2051e5d202f7164ae078167eed01ddde86b"
PEAK_BYTES = 1.5e9


@pytest.fixture(scope="module")
def file() -> Path:
    spec = load_spec(SPECS / "qwen2.5-coder-0.5b-cpu.yaml")
    assert spec.model.source.gguf is not None
    return gguf_file(spec.model.source.gguf, cache_root(), SPECS, Silent())


@pytest.fixture(scope="module")
def folder(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converted in a process of its own, which reports its peak memory in `peak.json` beside the folder."""
    out = tmp_path_factory.mktemp("demo") / "model"
    out.mkdir()
    script = textwrap.dedent(
        f"""
        import json, resource, time
        from pathlib import Path
        from metainfer.checkpoint.gguf import convert
        from metainfer.progress import Silent

        started = time.monotonic()
        convert(Path({str(file)!r}), Path({str(out)!r}), Silent())
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({{"peak_bytes": peak_bytes, "seconds": time.monotonic() - started}}))
        """
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    (out.parent / "peak.json").write_text(result.stdout)
    return out


@pytest.mark.slow
def test_the_conversion_stays_within_the_memory_of_a_small_machine(folder: Path) -> None:
    figures = json.loads((folder.parent / "peak.json").read_text())
    print(figures)
    assert figures["peak_bytes"] <= PEAK_BYTES


@pytest.mark.slow
def test_the_model_is_the_same_to_the_byte_on_every_machine(folder: Path) -> None:
    assert folder_digest(folder) == DIGEST


@pytest.mark.slow
def test_its_facts_are_those_of_the_published_model(folder: Path) -> None:
    facts = read_facts(folder)
    assert (facts.num_hidden_layers, facts.hidden_size, facts.intermediate_size) == (24, 896, 4864)
    assert (facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim) == (14, 2, 64)
    assert (facts.vocab_size, facts.max_position_embeddings, facts.rope_theta) == (151_936, 32_768, 1e6)
    assert facts.eos_token_ids == (151_645, 151_643)
    assert not facts.tie_word_embeddings


@pytest.mark.slow
def test_transformers_reads_the_ids_of_the_files_vocabulary(folder: Path, file: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    with GgufFile(file) as gguf:
        tokens, types = gguf.fields["tokenizer.ggml.tokens"], gguf.fields["tokenizer.ggml.token_type"]
    used = [(index, token) for index, (token, type_) in enumerate(zip(tokens, types, strict=True)) if type_ != 5]
    assert tokenizer.convert_tokens_to_ids([token for _, token in used]) == [index for index, _ in used]
    text = "def café(x):\n\treturn [x**2 for _ in range(10)]  # 日本語 🎉 it's\r\n\r\n  end"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|im_start|>user\n<tool_call>") == [151_644, 872, 198, 151_657]


@pytest.mark.slow
def test_tensors_are_the_files_dequantised_values_rounded_once(folder: Path, file: Path) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors import safe_open

    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output.weight": "lm_head.weight",
        "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        "blk.23.attn_v.weight": "model.layers.23.self_attn.v_proj.weight",
        "blk.7.attn_q.bias": "model.layers.7.self_attn.q_proj.bias",
    }
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        for tensor in GGUFReader(file).tensors:
            if tensor.name in names:
                values = np.array(dequantize(tensor.data[-1000:], tensor.tensor_type), np.float32)
                expected = torch.from_numpy(values).to(torch.bfloat16)
                assert torch.equal(tensors.get_tensor(names[tensor.name])[-1000:], expected)
