"""The numerics gate on real tiny engines, and on each fault that it must see."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from metainfer.errors import RefusedError
from metainfer.gates import numerics
from metainfer.gates.numerics import numerics_gate
from metainfer.gates.numerics_bounds import judge
from metainfer.gates.prompts import make_prompts, prompt_lengths
from metainfer.gates.reference import Reference, compare_file
from metainfer.gates.report import GateLog, GateReport
from metainfer.sandbox import Sandbox
from tests.gates.engines import Tiny
from tests.gates.faults import NUMERICS, Fault

CONFIG = {"BLOCK_SIZE": 16, "PREFILL_CHUNK": 256, "MAX_MODEL_LEN": 512, "VOCAB_SIZE": 320}
_REFERENCES: dict[str, Reference] = {}


@pytest.fixture(autouse=True)
def _reference_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate starts a process for the reference; here one is kept per model, so that many engines can be judged."""

    def compare(plan: Mapping[str, Any], measured: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        reference = _REFERENCES.setdefault(plan["model"], Reference(plan["model"], 1))
        compared = compare_file(reference, plan, measured)
        return compared, compared.pop("notes")

    monkeypatch.setattr(numerics, "compare", compare)


def test_lengths_lie_on_both_sides_of_every_boundary() -> None:
    lengths = prompt_lengths(CONFIG, 64)
    assert len(lengths) == 16
    assert {1, 15, 16, 17, 31, 32, 33, 65, 265} <= set(lengths)
    assert max(lengths) + 64 <= CONFIG["MAX_MODEL_LEN"]


def test_a_context_too_short_for_the_prompts_is_refused_with_the_reason() -> None:
    with pytest.raises(RefusedError, match="max_model_len"):
        prompt_lengths(CONFIG | {"MAX_MODEL_LEN": 80}, 64)


def test_another_seed_gives_other_prompts(qwen2: Tiny) -> None:
    first, again, other = (make_prompts(qwen2.model, CONFIG, seed, 64) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert all(0 <= token < 320 for prompt in first for token in prompt)


def test_a_generated_engine_passes(qwen3: Tiny, sandbox: Sandbox, kernels: Path) -> None:
    report = numerics_gate(qwen3.engine, qwen3.model, sandbox, kernels=kernels)
    assert report.passed, report.findings
    assert report.figures["prompts"] == 16
    assert int(report.figures["tokens_compared"]) + 64 * int(report.figures["ties"]) >= 16 * 64
    assert report.figures["tensors_altered"] == 35
    assert report.figures["sandbox"] is True


def _assert_sees(fault: Fault, report: GateReport) -> None:
    assert report.verdict in ("failed", "error")
    assert any(re.search(fault.found, f"{f.where} {f.message}") for f in report.findings), report.findings


def test_the_gate_sees_a_wrong_rotation(qwen3: Tiny, sandbox: Sandbox, kernels: Path, tmp_path: Path) -> None:
    fault = NUMERICS[0]
    faulty = qwen3.with_fault(fault.module, fault.old, fault.new, tmp_path)
    _assert_sees(fault, numerics_gate(faulty.engine, faulty.model, sandbox, kernels=kernels))


@pytest.mark.slow
def test_an_engine_with_biases_and_an_own_head_passes(qwen2: Tiny, sandbox: Sandbox, kernels: Path) -> None:
    report = numerics_gate(qwen2.engine, qwen2.model, sandbox, kernels=kernels)
    assert report.passed, report.findings
    assert report.figures["tensors_altered"] == 39


@pytest.mark.slow
def test_the_reference_runs_as_a_process_of_its_own(
    qwen3: Tiny, sandbox: Sandbox, kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert numerics_gate(qwen3.engine, qwen3.model, sandbox, kernels=kernels, seed=1).passed


@pytest.mark.slow
@pytest.mark.parametrize("fault", NUMERICS[1:], ids=str)
def test_the_gate_sees(
    fault: Fault, request: pytest.FixtureRequest, sandbox: Sandbox, kernels: Path, tmp_path: Path
) -> None:
    tiny: Tiny = request.getfixturevalue(fault.engine)
    faulty = tiny.with_fault(fault.module, fault.old, fault.new, tmp_path)
    _assert_sees(fault, numerics_gate(faulty.engine, faulty.model, sandbox, kernels=kernels))


GOOD: dict[str, Any] = {
    "noise": {"logprob": 1e-5, "kl": 1e-11},
    "tokens": {
        "prompts": [{"length": 5, "agreed": 64, "end": "complete"}] * 16,
        "logprob": {"count": 1024, "max": 1e-5, "mean": 1e-6},
        "kl": {"count": 1024, "max": 1e-11, "mean": 1e-12},
        "row_max": 1e-5,
    },
    "layers": [1e-6, 1e-6],
    "perturbed": [{"tensor": "w", "engine": 2.0, "reference": 2.0, "apart": 1e-5}],
    "runs": {
        name: {"rows": 8, "wanted": 8, "logprob": 1e-6, "kl": 1e-12}
        for name in ("alone", "chunked", "cached", "reprefill")
    },
}
NOTES: dict[str, Any] = {
    "idle_blocks": [100, 100],
    "poisoned_bytes": 5,
    "cached_computed": 9,
    "wrong_folder": "its digest is …",
    "tensors": {"float32 cpu 2": 1000, "float32 cpu 5": 10},
}
PLAN: dict[str, Any] = {
    "new_tokens": 64, "prompts": [[1] * 33], "again": [0], "again_tokens": 4, "cacheable": 32, "weight_dtype": "fp32",
}  # fmt: skip


def verdict(path: tuple[Any, ...] = (), value: Any = None) -> list[str]:
    """What is found when one number of an otherwise good comparison is replaced."""
    data: dict[str, Any] = copy.deepcopy({"compared": GOOD, "notes": NOTES})
    if path:
        place: Any = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    log = GateLog()
    judge(log, PLAN, data["compared"], data["notes"], weight_bytes=1000)
    return [finding.message for finding in log.findings]


def test_a_good_comparison_has_no_findings() -> None:
    assert verdict() == []


_DIFFERS = {"length": 5, "agreed": 3, "end": "differs", "step": 3, "engine": 7, "reference": 8, "gap": 0.5}
_NAN = float("nan")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("compared", "tokens", "prompts", 3), _DIFFERS),
        (("compared", "tokens", "prompts", 3), {"length": 5, "agreed": 0, "end": "missing"}),
        (("compared", "tokens", "prompts"), [{"length": 5, "agreed": 1, "end": "tie"}] * 16),
        (("compared", "tokens", "logprob", "max"), 1e-2),
        (("compared", "tokens", "logprob", "max"), _NAN),
        (("compared", "tokens", "kl", "max"), 1e-6),
        (("compared", "tokens", "kl"), {"count": 0, "max": 0.0, "mean": 0.0}),
        (("compared", "runs", "cached", "logprob"), 1e-2),
        (("compared", "runs", "cached", "logprob"), _NAN),
        (("compared", "runs", "alone", "rows"), 1),
        (("compared", "layers", 1), 0.1),
        (("compared", "layers", 1), _NAN),
        (("compared", "perturbed"), []),
        (("compared", "perturbed", 0, "apart"), 1.0),
        (("compared", "perturbed", 0, "apart"), _NAN),
        (("compared", "perturbed", 0, "reference"), 0.0),
        (("notes", "idle_blocks"), [99, 100]),
        (("notes", "poisoned_bytes"), 0),
        (("notes", "cached_computed"), 36),
        (("notes", "tensors"), {"float32 cpu 2": 10**9}),
        (("notes", "tensors"), {"float32 cuda 2": 1000}),
    ],
)
def test_each_number_can_turn_the_gate_red(path: tuple[Any, ...], value: Any) -> None:
    assert verdict(path, value)


def test_a_folder_that_was_not_refused_is_a_finding() -> None:
    notes = {key: value for key, value in NOTES.items() if key != "wrong_folder"}
    log = GateLog()
    judge(log, PLAN, GOOD, notes, weight_bytes=1000)
    assert len(log.findings) == 1
