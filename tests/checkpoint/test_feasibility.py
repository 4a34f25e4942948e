"""The arithmetic of memory, against figures computed by hand and the sizes of real tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metainfer.checkpoint.facts import ModelFacts, read_facts
from metainfer.checkpoint.feasibility import RUNTIME_BYTES, InfeasibleError, feasibility, require_feasible
from metainfer.errors import ExitCode
from metainfer.spec.load import load_spec
from metainfer.spec.models import Spec

DEMO_SPEC = Path(__file__).resolve().parents[2] / "specs" / "qwen2.5-coder-0.5b-cpu.yaml"


def spec_of(max_model_len: int = 100, max_concurrency: int = 3, **precision: str) -> Spec:
    return Spec.model_validate(
        {
            "apiVersion": "metainfer/v1",
            "name": "tiny",
            "model": {"source": {"path": "model"}, "licence": "none"},
            "target": {"platform": "cpu-x86-avx2"},
            "precision": precision,
            "workload": {"max_model_len": max_model_len, "max_concurrency": max_concurrency},
            "serving": {"features": ["chat"]},
        }
    )


@pytest.fixture
def demo() -> ModelFacts:
    """Qwen2.5-Coder-0.5B-Instruct, untied: 630,167,424 parameters."""
    return ModelFacts(
        architecture="qwen2", vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, head_dim=64, rms_norm_eps=1e-6, rope_theta=1e6,
        max_position_embeddings=32_768, tie_word_embeddings=False, attention_bias=True, qk_norm=False,
        eos_token_ids=(151_645,), sharded=False, has_chat_template=True, source_dtype="bf16",
        num_parameters=630_167_424, weight_bytes=1_260_334_848,
    )  # fmt: skip


def test_the_demo_s_figures_are_those_computed_by_hand(demo: ModelFacts) -> None:
    result = feasibility(load_spec(DEMO_SPEC), demo, machine_bytes=8_000_000_000)
    assert result.weight_bytes == 1_260_334_848
    # 16 requests × 4,096 tokens × 2 (key, value) × 24 layers × 2 heads × 64 × 4 bytes
    assert result.kv_bytes == 16 * 4096 * 24_576 == 1_610_612_736
    assert result.runtime_bytes == RUNTIME_BYTES
    assert result.activation_bytes < 100_000_000
    assert result.fits
    assert "65,536 tokens × 24,576 bytes" in str(result)
    assert str(result).endswith("of 8.00 GB: fits")


def test_a_request_s_last_block_counts_whole(random_qwen3: Path) -> None:
    facts = read_facts(random_qwen3)
    token_bytes = 2 * facts.num_hidden_layers * facts.num_key_value_heads * facts.head_dim * 4
    assert token_bytes == 2 * 2 * 2 * 20 * 4
    assert feasibility(spec_of(17, 3), facts).kv_bytes == 3 * 32 * token_bytes
    assert feasibility(spec_of(16, 3), facts).kv_bytes == 3 * 16 * token_bytes


def test_weights_weigh_what_the_file_holds(random_qwen2: Path, random_qwen3: Path) -> None:
    for folder, weights in ((random_qwen2, "fp32"), (random_qwen3, "bf16")):
        files = list(folder.glob("*.safetensors"))
        size = sum(file.stat().st_size for file in files)
        found = feasibility(spec_of(weights=weights), read_facts(folder)).weight_bytes
        assert 0 < size - found < 5_000 * len(files), "a file is its tensors and a short header"
    assert (
        feasibility(spec_of(weights="fp32"), read_facts(random_qwen3)).weight_bytes
        == 2 * read_facts(random_qwen3).weight_bytes
    )


def test_what_does_not_fit_is_refused_with_the_arithmetic_and_the_way_out(demo: ModelFacts) -> None:
    spec = load_spec(DEMO_SPEC)
    needed = feasibility(spec, demo).needed_bytes
    assert require_feasible(spec, demo, machine_bytes=needed).fits
    with pytest.raises(InfeasibleError) as caught:
        require_feasible(spec, demo, machine_bytes=needed - 1)
    assert caught.value.exit_code == ExitCode.REFUSED
    text = str(caught.value)
    for part in ("1.26 GB = 630,167,424 parameters × 2 bytes", "does not fit", "workload.max_concurrency"):
        assert part in text


def test_a_context_beyond_the_model_s_positions_is_refused_with_both(random_qwen2: Path) -> None:
    facts = read_facts(random_qwen2)
    assert feasibility(spec_of(512, 1, weights="fp32"), facts)
    with pytest.raises(InfeasibleError, match=r"max_model_len is 513.*end at 512"):
        feasibility(spec_of(513, 1, weights="fp32"), facts)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rounding_the_weights_down_is_refused(random_qwen2: Path, dtype: str) -> None:
    facts = read_facts(random_qwen2).model_copy(update={"source_dtype": "fp32" if dtype == "float32" else "fp16"})
    with pytest.raises(InfeasibleError, match="choose fp32"):
        feasibility(spec_of(weights="bf16"), facts)


def test_more_requests_never_need_less(random_qwen2: Path) -> None:
    facts = read_facts(random_qwen2)
    needs: list[Any] = [feasibility(spec_of(64, n, weights="fp32"), facts).needed_bytes for n in (1, 2, 50, 300, 1000)]
    assert needs == sorted(set(needs))
