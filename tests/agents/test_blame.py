"""Written units that hold alone and break the whole: the one at fault is found, and its exemplar takes its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.ckb.mutants import default_deployments
from metainfer.gates.report import GateReport
from metainfer.gates.static import static_gate
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.manifest import AgentRecord, ObjectionRecord
from metainfer.generate.scratch import scratch_inputs
from metainfer.generate.specializer import generate
from metainfer.generate.written import WrittenUnits
from metainfer.pipeline.blame import Candidate, assemble_what_fits, find_culprits
from metainfer.sandbox import Sandbox
from tests.agents.handwritten import RMSNORM, ROPE, SWIGLU

CKB = Path(__file__).parents[2] / "ckb"
AGENT = AgentRecord(settings={"model": "m"}, tokens=1, cost_usd=0.0)
HELPER = "\n\ndef _widened(x: Tensor) -> Tensor:\n    return x.float()\n"


@pytest.fixture(scope="module")
def inputs() -> EngineInputs:
    deployment = default_deployments()[1]  # whose Linear imports no functional
    return scratch_inputs(CKB, deployment.facts, deployment.model)


def written(contract: str, text: str) -> WrittenUnits:
    return WrittenUnits(contract, text.lstrip(), "agents")


def judge(candidate: Candidate, folder: Path) -> GateReport:
    candidate.engine.write(folder)
    return static_gate(folder, Sandbox())


def test_of_two_files_that_define_the_same_name_the_later_falls_back(inputs: EngineInputs) -> None:
    norm = written("family/rmsnorm", RMSNORM.replace("weight.to(torch.float32)", "_widened(weight)") + HELPER)
    mlp = written("family/swiglu-mlp", SWIGLU.replace("self._gate_up(x)", "_widened(self._gate_up(x))") + HELPER)
    candidate = assemble_what_fits(inputs, [], [norm, mlp, written("family/rope", ROPE)], AGENT)
    assert [own.contract for own in candidate.written] == ["family/rmsnorm", "family/rope"]
    assert candidate.agent is not None
    assert candidate.agent.fell_back == ("family/swiglu-mlp",)
    assert candidate.engine.manifest.agent == candidate.agent


@pytest.mark.slow
def test_the_one_that_leaned_on_a_neighbours_import_is_found(inputs: EngineInputs, tmp_path: Path) -> None:
    leaning = RMSNORM.replace("torch.mean(x * x, dim=-1, keepdim=True)", "F.normalize(x * x, dim=-1)")
    units = (written("family/swiglu-mlp", SWIGLU), written("family/rope", ROPE), written("family/rmsnorm", leaning))
    candidate = Candidate(generate(inputs, units, agent=AGENT), units, AGENT)
    red = judge(candidate, tmp_path / "red")
    assert "Undefined name `F`" in red.findings[0].message

    def rerun(folder: Path, gate: str) -> GateReport:
        assert gate == "static"
        return static_gate(folder, Sandbox())

    assert find_culprits(candidate, inputs, red, rerun) == ("family/rmsnorm",)
    assert judge(candidate.without(["family/rmsnorm"], inputs), tmp_path / "green").passed


@pytest.mark.slow
def test_two_that_are_both_at_fault_are_both_found_and_nobody_else(inputs: EngineInputs, tmp_path: Path) -> None:
    norm = RMSNORM.replace("torch.mean(x * x, dim=-1, keepdim=True)", "nowhere.normalize(x * x)")
    mlp = SWIGLU.replace("torch.sigmoid(gate)", "nowhere.sigmoid(gate)")
    files = {"family/rope": ROPE, "family/swiglu-mlp": mlp, "family/rmsnorm": norm}
    units = tuple(written(contract, text) for contract, text in files.items())
    candidate = Candidate(generate(inputs, units, agent=AGENT), units, AGENT)
    red = judge(candidate, tmp_path / "red")
    assert not red.passed
    culprits = find_culprits(candidate, inputs, red, lambda folder, gate: static_gate(folder, Sandbox()))
    assert sorted(culprits) == ["family/rmsnorm", "family/swiglu-mlp"]
    lighter = candidate.without(culprits, inputs)
    assert [own.contract for own in lighter.written] == ["family/rope"]
    assert lighter.agent is not None
    assert sorted(lighter.agent.fell_back) == ["family/rmsnorm", "family/swiglu-mlp"]


def test_without_a_culprit_among_the_written_nobody_is_blamed(inputs: EngineInputs) -> None:
    candidate = Candidate(generate(inputs, [], agent=AGENT), (), AGENT)
    red = GateReport(gate="static", verdict="failed", figures={}, findings=[], seconds=0.0, reproduce="")
    assert find_culprits(candidate, inputs, red, lambda folder, gate: red) == ()


def test_what_a_reviewer_said_goes_with_the_file_that_it_was_about() -> None:
    said = [
        ObjectionRecord(contract=name, clause="S1", promise="…", line=1, why="…")
        for name in ("family/rmsnorm", "family/rope")
    ]
    settings = {"backend": "agents", "roles": ["reviewer"]}
    record = AGENT.model_copy(
        update={"settings": settings, "objections": tuple(said), "left": ("a/b",), "unreviewed": ("c/d",)}
    )
    assert record.without("family/rope").objections == (said[0],)
    faster = record.faster(["family/rmsnorm", "a/b"], tokens=7, cost_usd=0.5)
    assert faster.objections == (said[1],)
    assert faster.unreviewed == ("c/d", "family/rmsnorm", "a/b")
    assert (faster.optimised, faster.left, faster.tokens) == (("family/rmsnorm", "a/b"), (), 7)
