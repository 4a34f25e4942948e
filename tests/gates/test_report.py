"""A report says what happened, and never more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metainfer.errors import MachineError
from metainfer.gates.report import (
    MAX_FINDINGS,
    GateFinding,
    GateLog,
    GateReport,
    clip,
    machine_info,
    make_evidence,
    reproduction,
    run_gate,
)


def test_a_gate_that_finds_nothing_passes() -> None:
    report = run_gate("unit", "metainfer gate unit x", lambda log: log.figure("checks", 3))
    assert report.passed
    assert report.figures == {"checks": 3}


def test_a_finding_fails_the_gate() -> None:
    report = run_gate("unit", "", lambda log: log.find("too large", "layers.py:3", error=0.5))
    assert report.verdict == "failed"
    assert report.findings == [GateFinding(message="too large", where="layers.py:3", figures={"error": 0.5})]


@pytest.mark.parametrize("error", [MachineError("no sandbox"), ZeroDivisionError("x"), AssertionError("y")])
def test_a_gate_that_breaks_is_red(error: Exception) -> None:
    def body(log: GateLog) -> None:
        raise error

    report = run_gate("unit", "", body)
    assert report.verdict == "error"
    assert not report.passed
    assert str(error) in report.findings[0].message


def test_there_is_no_verdict_for_a_skip() -> None:
    with pytest.raises(ValueError, match="verdict"):
        GateReport(gate="unit", verdict="skipped", figures={}, findings=[], seconds=0, reproduce="")  # type: ignore[arg-type]


def test_many_findings_are_counted_and_cut() -> None:
    def body(log: GateLog) -> None:
        for index in range(1000):
            log.find(f"finding {index}" + "x" * 10_000)

    report = run_gate("unit", "", body)
    assert len(report.findings) == MAX_FINDINGS
    assert report.figures["findings"] == 1000
    assert len(report.model_dump_json()) < 100_000


def test_figures_that_json_cannot_hold_are_still_seen() -> None:
    report = run_gate("numerics", "", lambda log: log.figure("kl", float("nan")))
    assert report.figures["kl"] == "nan"
    assert json.loads(make_evidence("hash", [report]).encode())["gates"][0]["figures"]["kl"] == "nan"


def test_text_from_an_engine_cannot_break_the_evidence_or_the_terminal() -> None:
    assert clip("half \ud800 a pair, \x1b[2J and \x00") == "half \\ud800 a pair, \\u001b[2J and \\u0000"
    report = run_gate("serving", "", lambda log: log.find("\ud800"))
    assert json.loads(make_evidence("hash", [report]).encode())["gates"][0]["verdict"] == "failed"


def test_evidence_is_green_only_with_gates_that_all_passed() -> None:
    good = run_gate("unit", "", lambda log: None)
    bad = run_gate("unit", "", lambda log: log.find("x"))
    assert make_evidence("h", [good]).green
    assert not make_evidence("h", [good, bad]).green
    assert not make_evidence("h", []).green


def test_the_reproduction_is_one_command_without_our_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert reproduction("unit", tmp_path / "engines" / "x", 7) == "metainfer gate unit engines/x --seed 7"
    assert reproduction("static", Path("/somewhere/else/x")) == "metainfer gate static x"


def test_machine_information_names_nobody() -> None:
    import getpass
    import socket

    text = json.dumps(machine_info())
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text
    assert f'"{getpass.getuser()}"' not in text
