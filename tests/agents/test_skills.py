"""Skills hold a contract, a way to submit, and nothing that is kept back; and they follow the public format."""

from __future__ import annotations

import shlex

import pytest
import yaml

from metainfer.agents.leakage import leaks
from metainfer.agents.skills import MAX_SKILL_BYTES, Skill, complaints
from metainfer.ckb.mutants import default_deployments
from metainfer.generate.blueprint import NEEDED_UNITS
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.scratch import scratch_inputs
from metainfer.pipeline.skills import export_skills
from metainfer.spec.models import Generation
from tests.agents.test_brief import CKB, contracts, exemplar_text, published


@pytest.fixture(scope="module")
def inputs() -> EngineInputs:
    deployment = default_deployments()[0]
    return scratch_inputs(CKB, deployment.facts, deployment.model)


@pytest.fixture(scope="module")
def skills(inputs: EngineInputs) -> list[Skill]:
    return export_skills(inputs, Generation(reference="none"))


def test_there_is_a_skill_for_every_unit_and_one_for_reviewing(skills: list[Skill]) -> None:
    assert len(skills) == 19
    texts = "\n".join(skill.files["SKILL.md"] for skill in skills if skill.name != "review-engine-units")
    assert [unit for unit in NEEDED_UNITS if unit not in texts] == []


def test_each_follows_the_format(skills: list[Skill]) -> None:
    for skill in skills:
        assert list(complaints(skill)) == []
        front = yaml.safe_load(skill.files["SKILL.md"].split("---\n")[1])
        assert front["name"] == skill.name
        assert len(skill.files["SKILL.md"].encode()) <= MAX_SKILL_BYTES


def test_none_holds_code_of_ours_or_a_check(inputs: EngineInputs, skills: list[Skill]) -> None:
    kept_back = [exemplar_text(inputs, contract) for contract in contracts(inputs)]
    kept_back += [(CKB / contract / "check.py").read_text() for contract in contracts(inputs)]
    for skill in skills:
        everything = "\n".join(skill.files.values())
        assert [leaks(everything, text, published(inputs)) for text in kept_back] == [[]] * len(kept_back), skill.name


def test_a_skill_says_how_to_submit(skills: list[Skill]) -> None:
    [norm] = [skill for skill in skills if skill.name == "write-family-rmsnorm"]
    words = shlex.split(norm.files["scripts/submit.sh"].splitlines()[-1])
    assert words == ["exec", "metainfer", "submit", "(none)", "RMSNorm", "${1:?the file}"]


def test_the_same_knowledge_makes_the_same_skills(inputs: EngineInputs, skills: list[Skill]) -> None:
    assert export_skills(inputs, Generation(reference="none")) == skills


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x", "no front matter", "no front matter"),
        ("x", "---\nname: y\ndescription: d\n---\n", "calls it 'y'"),
        ("X y", "---\nname: X y\ndescription: d\n---\n", "lower-case"),
        ("x", "---\nname: x\n---\n", "description"),
        ("x", "---\nname: x\ndescription: d\nmagic: 1\n---\n", "no magic"),
        ("x", f"---\nname: x\ndescription: d\n---\n{'x' * MAX_SKILL_BYTES}", "more than"),
    ],
)
def test_what_the_format_forbids_is_named(name: str, text: str, words: str) -> None:
    assert any(words in complaint for complaint in complaints(Skill(name, {"SKILL.md": text})))


def test_nothing_lies_outside_of_the_folder() -> None:
    good = "---\nname: x\ndescription: d\n---\n"
    assert list(complaints(Skill("x", {"SKILL.md": good, "../y": ""}))) == ["x: ../y lies outside of its folder"]
