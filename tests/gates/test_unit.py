"""The unit gate: a contract that is not checked, or not on the engine's own code, is never a pass."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from metainfer.gates.unit import unit_gate
from metainfer.sandbox import Sandbox
from tests.gates.engines import CKB, Tiny
from tests.gates.faults import UNIT, Fault

_FEW = ("family/rmsnorm", "general/paged-kv-cache", "general/sampler", "general/sequence")


def few_contracts(tiny: Tiny, out: Path) -> Tiny:
    """A copy whose manifest speaks of a few units only, so that the gate is quick."""
    copy = Tiny(out / "tiny", tiny.model)
    shutil.copytree(tiny.engine, copy.engine, dirs_exist_ok=True)
    path = copy.engine / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["contracts"] = [entry for entry in manifest["contracts"] if entry["id"] in _FEW]
    manifest["units"] = [entry for entry in manifest["units"] if entry["contract"] in _FEW]
    path.write_text(json.dumps(manifest))
    return copy


def test_an_engine_passes_its_contracts(qwen2: Tiny, sandbox: Sandbox, tmp_path: Path) -> None:
    report = unit_gate(few_contracts(qwen2, tmp_path).engine, CKB, sandbox)
    assert report.passed, report.findings
    assert report.figures["contracts"] == len(_FEW)
    assert int(report.figures["checks"]) >= len(_FEW)


@pytest.mark.parametrize("fault", UNIT, ids=str)
def test_the_gate_sees(fault: Fault, qwen2: Tiny, sandbox: Sandbox, tmp_path: Path) -> None:
    faulty = qwen2.with_fault(fault.module, fault.old, fault.new, tmp_path / "faulty")
    report = unit_gate(few_contracts(faulty, tmp_path / "few").engine, CKB, sandbox)
    assert report.verdict == "failed"
    assert any(re.search(fault.found, f"{f.where} {f.message}") for f in report.findings), report.findings


def test_a_contract_that_changed_since_is_a_finding(qwen2: Tiny, sandbox: Sandbox, tmp_path: Path) -> None:
    engine = few_contracts(qwen2, tmp_path).engine
    ckb = tmp_path / "ckb"
    shutil.copytree(CKB, ckb)
    with (ckb / "family" / "rmsnorm" / "check.py").open("a") as stream:
        stream.write("\n# one more line\n")
    report = unit_gate(engine, ckb, sandbox)
    assert any("changed since" in finding.message for finding in report.findings)


def test_a_contract_without_checks_is_an_error(qwen2: Tiny, sandbox: Sandbox, tmp_path: Path) -> None:
    engine = few_contracts(qwen2, tmp_path).engine
    ckb = tmp_path / "ckb"
    shutil.copytree(CKB, ckb)
    (ckb / "family" / "rmsnorm" / "check.py").write_text('"""Nothing."""\n')
    report = unit_gate(engine, ckb, sandbox)
    assert report.verdict == "error"
    assert "check_" in report.findings[0].message


def test_an_engine_without_contracts_is_an_error(qwen2: Tiny, sandbox: Sandbox, tmp_path: Path) -> None:
    engine = few_contracts(qwen2, tmp_path).engine
    path = engine / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"contracts": [], "units": []}))
    assert unit_gate(engine, CKB, sandbox).verdict == "error"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_whole_engines_pass_all_their_contracts(
    name: str, request: pytest.FixtureRequest, sandbox: Sandbox, kernels: Path
) -> None:
    tiny: Tiny = request.getfixturevalue(name)
    report = unit_gate(tiny.engine, CKB, sandbox, kernels=kernels)
    assert report.passed, report.findings
