"""An engine with nothing of ours in it: every unit comes from a model that saw contracts only."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from metainfer.agents.leakage import code_words, leaks
from metainfer.forge.setup import open_forge
from metainfer.gates.runner import run_gates
from metainfer.generate.blueprint import UNIT_MODULES
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.regenerate import differences, regenerate
from metainfer.generate.specializer import generate
from metainfer.generate.written import WrittenUnits
from metainfer.pipeline.agents import OUTCOMES_NAME
from metainfer.pipeline.prepare import Prepared, prepare
from metainfer.pipeline.run import RunResult
from metainfer.progress import Silent
from metainfer.sandbox import Sandbox
from tests.agents.handwritten import fenced, handwritten, handwritten_contracts
from tests.agents.repository import ROOT, make_repository, run_with
from tests.agents.scripted_endpoint import answers
from tests.agents.test_brief import CKB, contracts, exemplar_text, published

GENERATION = {"backend": "agents", "model": "scripted", "reference": "none", "fallback": "none", "roles": []}
ALIKE_AT_MOST, ALIKE_ON_AVERAGE = 0.8, 0.6
"""Shares of words in common order. Measured: 0.18 (HTTP server) to 0.77 (attention, loop), 0.56 on average. Names of
units, parameters, constants, weights and metrics are the contracts' and count as alike; a copy has 1.0."""

SAMPLER = "general/sampler"
WIDENING = """\
    while count < len(weights) and float(kept.sum()) < top_p:
        count = min(4 * count, len(weights))
        kept, order = torch.topk(weights, count)
"""
NARROW_SAMPLER = handwritten(SAMPLER).replace(WIDENING, "")
"""Looks at the best 64 tokens and no further: right for every model that is sure of itself, and no mistake that the
contract tells of."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(ROOT / "specs" / "tiny-qwen3.yaml", CKB, ROOT, tmp_path_factory.mktemp("models"), Silent())


@pytest.fixture(scope="module")
def inputs(prepared: Prepared) -> EngineInputs:
    return prepared.inputs


@dataclass
class Writer:
    """Knows every file, and gives a narrow sampler until it hears what is wrong with it."""

    contract_of: dict[str, str]
    heard: list[tuple[str, list[dict[str, str]]]] = field(default_factory=list)

    def answer(self, body: dict[str, Any]) -> str:
        messages = body["messages"]
        [task] = re.findall(r"^Write (.+) as the contract says", messages[1]["content"], re.MULTILINE)
        contract = self.contract_of[task]
        self.heard.append((contract, messages))
        is_first = not any("<findings>" in message["content"] for message in messages)
        return fenced(NARROW_SAMPLER if contract == SAMPLER and is_first else handwritten(contract))


@pytest.fixture(scope="module")
def writer(inputs: EngineInputs) -> Writer:
    units = {contract.id: " and ".join(unit.name for unit in contract.units) for contract in inputs.routing.contracts}
    return Writer({names: contract for contract, names in units.items()})


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository") / "work")


@pytest.fixture(scope="module")
def result(work: Path, writer: Writer) -> RunResult:
    """The whole run, some minutes: each contract judged, a repair, then every gate."""
    return run_with(work, answers(writer.answer), GENERATION)


def test_there_is_a_file_for_every_contract(inputs: EngineInputs) -> None:
    assert handwritten_contracts() == sorted(contracts(inputs))


def test_the_files_differ_from_the_exemplars(inputs: EngineInputs) -> None:
    alike = {
        contract: SequenceMatcher(
            None, code_words(handwritten(contract)), code_words(exemplar_text(inputs, contract)), autojunk=False
        ).ratio()
        for contract in contracts(inputs)
    }
    print("\n".join(f"{ratio:.2f} {contract}" for contract, ratio in sorted(alike.items())))
    assert {contract: ratio for contract, ratio in alike.items() if ratio > ALIKE_AT_MOST} == {}
    assert fmean(alike.values()) <= ALIKE_ON_AVERAGE


def test_an_engine_of_written_units_alone_says_what_the_reference_says(prepared: Prepared, tmp_path: Path) -> None:
    """The gates that need all units at once, without the minutes that judging each of them takes."""
    written = [WrittenUnits(contract, handwritten(contract), "agents") for contract in handwritten_contracts()]
    engine = generate(prepared.inputs, written)
    engine.write(tmp_path / prepared.inputs.name)
    assert {unit.backend for unit in engine.manifest.units} == {"agents"}
    reports = run_gates(
        tmp_path / prepared.inputs.name,
        spec=prepared.spec,
        model=prepared.model,
        ckb_root=CKB,
        sandbox=Sandbox(),
        progress=Silent(),
        gates=["static", "numerics"],
    )
    assert [(report.gate, report.findings) for report in reports] == [("static", []), ("numerics", [])]
    assert all(report.passed for report in reports)


@pytest.mark.slow
def test_every_gate_is_green_and_the_engine_is_proposed(work: Path, result: RunResult) -> None:
    assert [(report.gate, report.verdict) for report in result.gates] == [
        (gate, "passed") for gate in ("spec", "static", "unit", "numerics", "serving")
    ]
    assert result.status == "published"
    assert result.outcome is not None
    assert result.outcome.number is not None
    body = open_forge(work).get(result.outcome.number).body
    assert f"{len(UNIT_MODULES)} unit(s) written by a language model" in body
    assert "which saw no code of ours" in body


@pytest.mark.slow
def test_every_unit_is_the_models_and_nothing_fell_back(result: RunResult) -> None:
    assert result.manifest is not None
    assert {unit.backend for unit in result.manifest.units} == {"agents"}
    assert {unit.name for unit in result.manifest.units} == set(UNIT_MODULES)
    assert not any(unit.origin.startswith("ckb/") for unit in result.manifest.units)
    assert result.manifest.agent is not None
    assert result.manifest.agent.fell_back == ()


@pytest.mark.slow
def test_it_is_made_again_byte_for_byte(work: Path, result: RunResult) -> None:
    assert result.run_folder is not None
    engine = result.run_folder / "tiny-qwen3"
    assert differences(engine, regenerate(engine, work / "ckb")) == []
    assert list((engine / "tiny_qwen3" / "csrc").glob("*.cpp")) == []


@pytest.mark.slow
def test_the_wrong_unit_is_repaired_from_the_finding_alone(result: RunResult, writer: Writer) -> None:
    assert result.run_folder is not None
    outcomes = json.loads((result.run_folder / OUTCOMES_NAME).read_text())
    attempts = {outcome["contract"]: outcome["attempts"] for outcome in outcomes}
    assert {contract: len(tries) for contract, tries in attempts.items() if len(tries) != 1} == {SAMPLER: 2}
    findings = attempts[SAMPLER][0]["findings"]
    assert any(re.search(r"top_p 0\.\d.*\b64\b", finding) for finding in findings)
    [(_, conversation)] = [heard for heard in writer.heard if len(heard[1]) > 2]
    told = conversation[-1]["content"]
    assert all(finding in told for finding in findings[:2])
    check = (CKB / SAMPLER / "check.py").read_text()
    assert leaks(told, check, []) == []
    assert [word for word in ("def check_", "yield Finding", "check.py", "ckb/") if word in told] == []


@pytest.mark.slow
def test_no_prompt_of_the_run_holds_code_of_ours(result: RunResult, writer: Writer, inputs: EngineInputs) -> None:
    assert result.status == "published"
    kept_back = [exemplar_text(inputs, contract) for contract in contracts(inputs)]
    kept_back += [(CKB / contract / "check.py").read_text() for contract in contracts(inputs)]
    assert {contract for contract, _ in writer.heard} == set(contracts(inputs))
    for contract, messages in writer.heard:
        said = "\n".join(message["content"] for message in messages if message["role"] != "assistant")
        assert [leaks(said, text, published(inputs)) for text in kept_back] == [[]] * len(kept_back), contract
