"""Gates run cheapest first and stop at the first red one; without a sandbox, nothing that runs code is green."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metainfer.checkpoint.sources import ModelFolder
from metainfer.errors import InputError, MachineError
from metainfer.files import folder_digest
from metainfer.gates import runner
from metainfer.gates.report import GateReport
from metainfer.gates.runner import GATES, run_gates, summary
from metainfer.gates.specification import spec_gate
from metainfer.progress import Silent
from metainfer.sandbox import Sandbox
from metainfer.sandbox import sandbox as sandbox_module
from metainfer.spec.models import Spec
from tests.gates.engines import CKB, Tiny


def spec_of(tiny: Tiny, **workload: int) -> Spec:
    """The spec that the tiny engine could have been made from."""
    return Spec.model_validate(
        {
            "apiVersion": "metainfer/v1",
            "name": "tiny",
            "model": {"source": {"path": str(tiny.model)}, "licence": "none"},
            "target": {"platform": "cpu-x86-avx2"},
            "precision": {"weights": "bf16"},
            "workload": {"max_model_len": 512, "max_concurrency": 8} | workload,
            "serving": {"features": ["chat", "completions", "streaming", "logprobs", "stop", "seed"]},
        }
    )


def model_of(tiny: Tiny) -> ModelFolder:
    return ModelFolder(tiny.model, folder_digest(tiny.model), tiny.facts)


def run(tiny: Tiny, **options: Any) -> list[GateReport]:
    return run_gates(
        tiny.engine,
        spec=options.pop("spec", None) or spec_of(tiny),
        model=model_of(tiny),
        ckb_root=CKB,
        progress=Silent(),
        **{"sandbox": Sandbox(), **options},
    )


@pytest.fixture
def fake_gates(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Gates whose verdicts the test sets."""
    verdicts = dict.fromkeys(GATES, "passed")

    def makers(*_: object) -> dict[str, Any]:
        def maker(name: str) -> Any:
            return lambda: GateReport.model_validate(
                {"gate": name, "verdict": verdicts[name], "figures": {}, "findings": [], "seconds": 0, "reproduce": ""}
            )

        return {name: maker(name) for name in GATES}

    monkeypatch.setattr(runner, "_makers", makers)
    return verdicts


def test_all_gates_run_in_their_order(qwen2: Tiny, fake_gates: dict[str, str]) -> None:
    assert [report.gate for report in run(qwen2)] == ["spec", "static", "unit", "numerics", "serving"]


@pytest.mark.parametrize("verdict", ["failed", "error"])
def test_the_first_red_gate_ends_the_run(qwen2: Tiny, fake_gates: dict[str, str], verdict: str) -> None:
    fake_gates["unit"] = verdict
    assert [report.gate for report in run(qwen2)] == ["spec", "static", "unit"]
    assert len(run(qwen2, keep_going=True)) == 5


def test_chosen_gates_alone_run(qwen2: Tiny, fake_gates: dict[str, str]) -> None:
    assert [report.gate for report in run(qwen2, gates=["serving", "spec"])] == ["spec", "serving"]


@pytest.mark.parametrize("gates", [["lint"], []])
def test_a_gate_that_is_not_there_is_an_error(qwen2: Tiny, gates: list[str]) -> None:
    with pytest.raises(InputError, match="gates are spec"):
        run(qwen2, gates=gates)


def test_a_missing_sandbox_fails_every_gate_that_runs_code(
    qwen2: Tiny, fake_gates: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_bwrap(monkeypatch)
    for name in GATES[1:]:
        (report,) = run(qwen2, gates=[name])
        assert report.verdict == "failed"
        assert "no bwrap" in report.findings[0].message


def test_running_without_a_sandbox_is_shown_in_the_verdict(
    qwen2: Tiny, fake_gates: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_bwrap(monkeypatch)
    (report,) = run(qwen2, gates=["unit"], sandbox=Sandbox(allow_unsandboxed=True))
    assert report.passed
    assert report.figures["sandbox"] is False


def test_the_spec_gate_passes_what_the_engine_was_made_for(qwen2: Tiny) -> None:
    report = spec_gate(qwen2.engine, spec_of(qwen2), model_of(qwen2), CKB)
    assert report.passed, report.findings
    assert report.figures["units_covered"] == 28


def test_the_spec_gate_sees_an_engine_for_something_else(qwen2: Tiny) -> None:
    other = spec_of(qwen2).model_copy(update={"name": "other"})
    assert "the spec's name is other" in str(spec_gate(qwen2.engine, other, model_of(qwen2), CKB).findings)
    model = ModelFolder(qwen2.model, "sha256:" + "0" * 64, qwen2.facts)
    assert "is for the model" in str(spec_gate(qwen2.engine, spec_of(qwen2), model, CKB).findings)


def test_the_spec_gate_sees_what_does_not_fit(qwen2: Tiny) -> None:
    huge = spec_of(qwen2, max_concurrency=10**9)
    report = spec_gate(qwen2.engine, huge, model_of(qwen2), CKB)
    assert report.verdict == "failed"
    assert "does not fit" in report.findings[0].message
    long = spec_of(qwen2, max_model_len=10**6)
    assert "max_position_embeddings" in spec_gate(qwen2.engine, long, model_of(qwen2), CKB).findings[0].message


def test_the_summary_of_a_red_gate_is_its_first_finding(qwen2: Tiny, tmp_path: Path) -> None:
    report = spec_gate(tmp_path, spec_of(qwen2), model_of(qwen2), CKB)
    assert report.verdict == "error"
    assert "not a generated engine" in summary(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_generated_engines_pass_every_gate(name: str, request: pytest.FixtureRequest) -> None:
    tiny: Tiny = request.getfixturevalue(name)
    spec = spec_of(tiny)
    if name == "qwen3":
        spec = spec.model_copy(update={"precision": spec.precision.model_copy(update={"weights": "fp32"})})
    reports = run(tiny, spec=spec)
    assert [(report.gate, report.verdict) for report in reports] == [(gate, "passed") for gate in GATES], reports


def _without_bwrap(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise MachineError("no sandbox: there is no bwrap on PATH; install bubblewrap")

    monkeypatch.setattr(sandbox_module, "require_bwrap", missing)
