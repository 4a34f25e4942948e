"""The serving gate on real servers, and on each fault that it must see."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest

from metainfer.gates import serving_load
from metainfer.gates.conversation import chunks_of, error_of, is_idle, text_of
from metainfer.gates.report import GateLog
from metainfer.gates.serving import all_checks, converse, reference_answers, serving_gate
from metainfer.gates.subject import clean_subject
from metainfer.sandbox import Sandbox
from tests.gates.engines import QWEN2, Tiny, make_tiny
from tests.gates.faults import SERVING, Fault

Expected = Callable[[Tiny], dict[str, object]]


@pytest.fixture(scope="module")
def expected() -> Expected:
    """The reference's answers, asked once per model: a fault in an engine does not change them."""
    known: dict[Path, dict[str, object]] = {}

    def of(tiny: Tiny) -> dict[str, object]:
        if tiny.model not in known:
            with clean_subject(tiny.engine) as subject:
                known[tiny.model] = reference_answers(subject, tiny.model, 0)
        return known[tiny.model]

    return of


def talk(tiny: Tiny, expected: Expected, sandbox: Sandbox, kernels: Path, names: Sequence[str] = ()) -> GateLog:
    """Run the named checks, or all of them, on the engine's server."""
    log = GateLog()
    with (
        clean_subject(tiny.engine) as subject,
        sandbox.room({"engine": subject.folder, "model": tiny.model}, shared={"kernels": kernels}) as room,
    ):
        checks = [check for check in all_checks(subject) if not names or check.__name__ in names]
        assert len(checks) == len(names) or not names
        converse(log, room, subject, expected(tiny), checks, has_kernels=True)
    return log


def test_a_generated_server_holds_every_promise(
    qwen2: Tiny, expected: Expected, sandbox: Sandbox, kernels: Path
) -> None:
    log = talk(qwen2, expected, sandbox, kernels)
    assert log.findings == []
    assert log.figures["checks"] == 24
    assert log.figures["blocks_free"] + log.figures["blocks_cached"] == log.figures["blocks_total"]  # type: ignore[operator]
    assert int(log.figures["ends_of_sequence_tried"]) >= 1


def _assert_sees(fault: Fault, tiny: Tiny, expected: Expected, sandbox: Sandbox, kernels: Path, out: Path) -> None:
    log = talk(tiny.with_fault(fault.module, fault.old, fault.new, out), expected, sandbox, kernels, fault.checks)
    assert any(re.search(fault.found, finding.message) for finding in log.findings), log.findings


def test_the_gate_sees_a_stop_string_that_leaks(
    qwen2: Tiny, expected: Expected, sandbox: Sandbox, kernels: Path, tmp_path: Path
) -> None:
    _assert_sees(SERVING[0], qwen2, expected, sandbox, kernels, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", SERVING[1:], ids=str)
def test_the_gate_sees(
    fault: Fault, qwen2: Tiny, expected: Expected, sandbox: Sandbox, kernels: Path, tmp_path: Path
) -> None:
    _assert_sees(fault, qwen2, expected, sandbox, kernels, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "features",
    [
        {"chat": False},
        {"completions": False},
        {"streaming": False, "logprobs": False, "stop": False, "seed": False},
        {"completions": False, "streaming": False, "stop": False},
    ],
    ids=lambda features: "without " + ", ".join(features),
)
def test_servers_with_fewer_features_pass_and_refuse_the_rest(
    features: dict[str, bool], expected: Expected, sandbox: Sandbox, kernels: Path, tmp_path: Path
) -> None:
    tiny = make_tiny(tmp_path, QWEN2, "bf16", **features)
    assert talk(tiny, expected, sandbox, kernels).findings == []


@pytest.mark.slow
def test_the_whole_gate_reports(qwen3: Tiny, sandbox: Sandbox, kernels: Path) -> None:
    report = serving_gate(qwen3.engine, qwen3.model, sandbox, kernels=kernels)
    assert report.passed, report.findings
    assert report.figures["sandbox"] is True


@pytest.mark.slow
def test_a_server_that_does_not_start_is_an_error_with_its_words(
    qwen2: Tiny, sandbox: Sandbox, kernels: Path, tmp_path: Path
) -> None:
    faulty = qwen2.with_fault("server.py", "def create_app(", "def make_app(", tmp_path)
    report = serving_gate(faulty.engine, faulty.model, sandbox, kernels=kernels)
    assert report.verdict == "error"
    assert "create_app" in report.findings[0].message


def test_the_last_check_is_the_one_that_ends_the_server(qwen2: Tiny) -> None:
    with clean_subject(qwen2.engine) as subject:
        assert all_checks(subject)[-1] is serving_load.sigterm_drains


def test_a_stream_must_end_with_done() -> None:
    assert chunks_of('data: {"id": 1}\n\ndata: [DONE]\n\n') == [{"id": 1}]
    for broken in ("", 'data: {"id": 1}\n\n', "data: [DONE]\n\nevent: x\n\n"):
        with pytest.raises(AssertionError):
            chunks_of(broken)


def test_a_refusal_must_be_in_the_apis_format() -> None:
    good = httpx.Response(400, json={"error": {"message": "n: too many", "type": "x", "param": "n", "code": None}})
    assert error_of(good) == "n n: too many"
    for body in ({}, {"error": "no"}, {"error": {"message": "", "type": "x"}}, {"detail": "no"}, []):
        with pytest.raises(AssertionError):
            error_of(httpx.Response(400, json=body))


def test_the_text_of_a_choice_is_found_in_both_formats() -> None:
    assert text_of({"text": "a"}) == "a"
    assert text_of({"message": {"content": "b"}}) == "b"
    assert text_of({"delta": {}}) == ""


def test_idle_means_that_no_block_is_missing() -> None:
    idle = {
        "kv_blocks_free": 3.0, "kv_blocks_cached": 5.0, "kv_blocks_used": 0.0, "kv_blocks_total": 8.0,
        "requests_running": 0.0, "requests_waiting": 0.0,
    }  # fmt: skip
    assert is_idle(idle)
    for name, value in (("kv_blocks_free", 2.0), ("kv_blocks_used", 1.0), ("requests_waiting", 1.0)):
        assert not is_idle(idle | {name: value})
