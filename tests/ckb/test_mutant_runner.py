"""The runner of mutants itself: what it tries, when it stops, what it reports. Engines here hold one unit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from metainfer.checkpoint.facts import ModelFacts
from metainfer.ckb.facts import Facts
from metainfer.ckb.models import Mutant
from metainfer.ckb.mutants import MutantRunner, deployment, mutated_text, run_mutants
from metainfer.ckb.store import KnowledgeBase, KnowledgeError

EXEMPLAR = "general/counter/exemplars/plain.py"
PLACES = (deployment("qwen2", "bf16"), deployment("qwen3", "fp32"))


class OneModule:
    """Engines whose only module is the counting exemplar; in those of qwen2 it counts as folded away."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: list[str] = []

    def make(self, facts: Facts, model: ModelFacts, out: Path, *, folded: bool) -> None:
        self.made.append(f"{facts.architecture} {'folded' if folded else 'unfolded'}")
        (out / "counting").mkdir(parents=True)
        (out / "counting" / "__init__.py").write_text("")
        (out / "counting" / "text.py").write_text((self.root / EXEMPLAR).read_text())
        units = [{"name": "count", "module": "text"}]
        manifest = {"package": "counting", "facts": facts.model_dump(), "units": units}
        (out / "manifest.json").write_text(json.dumps(manifest))

    def replace(self, engine: Path, facts: Facts, file: str, text: str) -> bool:
        assert file == EXEMPLAR
        if facts.architecture == "qwen2":
            return False
        (engine / "counting" / "text.py").write_text(text)
        return True


@pytest.fixture
def engines(base: Path) -> OneModule:
    return OneModule(base)


@pytest.fixture
def runner(base: Path, engines: OneModule, tmp_path: Path) -> Iterator[MutantRunner]:
    with MutantRunner(KnowledgeBase.load(base), engines, tmp_path / "work", PLACES, timeout_s=20) as runner:
        yield runner


def mutant(replace: str, with_: str) -> Mutant:
    return Mutant.model_validate(
        {"name": "seeded", "file": "exemplars/plain.py", "replace": replace, "with": with_, "why": "To see."}
    )


def test_mutants_run_where_they_exist_until_noticed_and_engines_are_made_once(
    base: Path, runner: MutantRunner, engines: OneModule
) -> None:
    contract = KnowledgeBase.load(base).contracts["general/counter"]
    assert not runner.unchanged(contract, PLACES[0]).findings
    assert not runner.unchanged(contract, PLACES[1]).findings

    noticed = [runner.mutant(contract, seeded) for seeded in contract.mutants]
    assert [(result.mutant, result.noticed) for result in noticed] == [
        ("one-more", True),
        ("one-less", True),
        ("distinct", True),
    ]
    assert {result.deployments for result in noticed} == {("qwen3-fp32-all-untied",)}

    survivor = runner.mutant(contract, mutant("len(tokens)", "sum(1 for _ in tokens)"))
    assert not survivor.noticed
    assert survivor.deployments == ("qwen3-fp32-all-untied",)

    crash = runner.mutant(contract, mutant("return len(tokens)", "import os; os.abort()"))
    assert "signal 6" in crash.findings[0].message
    broken = runner.mutant(contract, mutant("return len(tokens)", "return ("))
    assert "SyntaxError" in broken.findings[0].message
    assert not broken.noticed

    assert not runner.unchanged(contract, PLACES[1]).findings
    assert engines.made == ["qwen2 folded", "qwen3 folded", "qwen2 unfolded", "qwen3 unfolded"]


def test_all_mutants_of_a_base_are_run_in_order(base: Path, engines: OneModule, tmp_path: Path) -> None:
    results = run_mutants(KnowledgeBase.load(base), engines, tmp_path / "work", deployments=PLACES)
    assert [(result.contract, result.mutant) for result in results] == [
        ("general/counter", "one-more"),
        ("general/counter", "one-less"),
        ("general/counter", "distinct"),
    ]


def test_a_mutant_whose_text_is_gone_is_an_error_not_a_pass(base: Path) -> None:
    knowledge = KnowledgeBase.load(base)
    with pytest.raises(KnowledgeError, match="seeded: its text occurs 0 times, not once"):
        mutated_text(knowledge, knowledge.contracts["general/counter"], mutant("len(words)", "0"))
