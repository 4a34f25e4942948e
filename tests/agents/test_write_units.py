"""Units written over HTTP by a scripted model, judged by the contract's own checks in the sandbox."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metainfer.agents.client import EndpointError
from metainfer.ckb.mutants import default_deployments
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.scratch import scratch_inputs
from metainfer.generate.specializer import generate
from metainfer.pipeline.agents import AgentAccess, NotWrittenError, Written, agent_settings, write_units
from metainfer.progress import Silent
from metainfer.sandbox import Sandbox
from metainfer.spec.models import Generation
from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS, ROPE, SWIGLU, fenced
from tests.agents.scripted_endpoint import Act, answers, fails, says, scripted

CKB = Path(__file__).parents[2] / "ckb"
SETTINGS = Generation(
    backend="agents", model="scripted", contracts=["family/rmsnorm"], max_tokens=2000, reference="none", roles=[]
)


@pytest.fixture(scope="module")
def inputs() -> EngineInputs:
    deployment = default_deployments()[0]
    return scratch_inputs(CKB, deployment.facts, deployment.model)


def write(inputs: EngineInputs, tmp_path: Path, act: Act, settings: Generation = SETTINGS, **access: Any) -> Written:
    with scripted(act) as endpoint:
        return write_units(
            replace(inputs, agent=agent_settings(settings)),
            settings,
            AgentAccess(endpoint.base_url, **access),
            folder=tmp_path / "run",
            state=tmp_path / "state" / "agents",
            sandbox=Sandbox(),
            progress=Silent(),
        )


def by_unit(body: dict[str, Any]) -> str:
    """The right answer to each task; of the norm, at first one that is wrong for quiet rows."""
    task = body["messages"][1]["content"]
    if "Write SwiGLU" in task:
        return fenced(SWIGLU)
    if "Write rope_tables" in task:
        return fenced(ROPE)
    return fenced(RMSNORM if len(body["messages"]) > 2 else RMSNORM_WITHOUT_EPS)


@pytest.mark.slow
def test_good_units_take_the_exemplars_places_and_a_wrong_one_is_repaired(inputs: EngineInputs, tmp_path: Path) -> None:
    only = ["family/rmsnorm", "family/rope", "family/swiglu-mlp"]
    settings = SETTINGS.model_copy(update={"contracts": only})
    written = write(inputs, tmp_path, answers(by_unit), settings)
    attempts = {outcome.contract: len(outcome.attempts) for outcome in written.outcomes}
    assert attempts == {"family/rmsnorm": 2, "family/rope": 1, "family/swiglu-mlp": 1}
    wrong = written.outcomes[0].attempts[0]
    assert "check_matches_float64" in wrong.findings[0]
    engine = generate(replace(inputs, agent=agent_settings(settings)), written.units, agent=written.record)
    backends = {unit.name: unit.backend for unit in engine.manifest.units}
    assert {name for name, backend in backends.items() if backend == "agents"} == {
        "RMSNorm", "rope_tables", "apply_rope", "SwiGLU",
    }  # fmt: skip
    assert engine.files["units/family.rmsnorm.py"].decode().strip() == RMSNORM.strip()
    assert b"torch.rsqrt" in engine.files["scratch/layers.py"]
    assert written.record.tokens > 0


@pytest.mark.slow
def test_what_the_repair_hears_is_the_finding_and_no_check(inputs: EngineInputs, tmp_path: Path) -> None:
    heard: list[str] = []

    def answer(body: dict[str, Any]) -> str:
        heard.append("\n".join(message["content"] for message in body["messages"]))
        return by_unit(body)

    write(inputs, tmp_path, answers(answer))
    assert "<findings>" in heard[1]
    assert "def check_" not in heard[1]
    assert "F.rms_norm" not in heard[1]


@pytest.mark.slow
def test_a_second_run_pays_nothing(inputs: EngineInputs, tmp_path: Path) -> None:
    first = write(inputs, tmp_path, answers(by_unit))
    again = write(inputs, tmp_path, fails(500))
    assert [unit.text for unit in again.units] == [unit.text for unit in first.units]
    assert again.record == first.record


@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        ("I would rather not.", "exactly one"),
        (fenced("class RMSNorm:\n    pass"), "RMSNorm.__init__ is missing"),
        (fenced("class RMSNorm(:"), "not Python in line 1"),
        (fenced(RMSNORM.replace("power = ", "S = x\n        power = ")), "may only decide"),
        (fenced(RMSNORM.replace("torch.mean(", "F.mean(")), "line 16: Undefined name `F`"),
        (fenced("import os\n" + RMSNORM + "\nos.system('true')"), "os.system"),
        (fenced(RMSNORM + "\n\ndef extra() -> None:\n    pass"), "extra is public"),
        (fenced(RMSNORM.replace("self._eps = eps", "self._eps = 1e-6")), "check_matches_float64|RMS_NORM_EPS|eps"),
    ],
    ids=[
        "no code",
        "no methods",
        "no Python",
        "a reserved name",
        "a neighbour's import",
        "forbidden",
        "public",
        "typed in",
    ],
)
def test_what_does_not_hold_falls_back_and_says_why(
    inputs: EngineInputs, tmp_path: Path, answer: str, finding: str
) -> None:
    settings = SETTINGS.model_copy(update={"rounds": 0})
    written = write(inputs, tmp_path, says(answer), settings)
    assert written.units == []
    [outcome] = written.outcomes
    assert len(outcome.attempts) == 1
    import re

    assert re.search(finding, " ".join(outcome.attempts[0].findings))


@pytest.mark.slow
def test_fresh_attempts_follow_when_repair_does_not_help(inputs: EngineInputs, tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> str:
        return fenced(RMSNORM if body["temperature"] else RMSNORM_WITHOUT_EPS)

    settings = SETTINGS.model_copy(update={"rounds": 1, "samples": 3})
    written = write(inputs, tmp_path, answers(answer), settings)
    assert [(a.round, a.sample, a.passed) for a in written.outcomes[0].attempts] == [
        (0, 0, False), (1, 0, False), (0, 1, True),
    ]  # fmt: skip


def test_an_answer_that_a_filter_ends_is_one_contracts_matter(inputs: EngineInputs, tmp_path: Path) -> None:
    written = write(inputs, tmp_path, says("x", finish="content_filter"))
    assert written.units == []
    assert "content_filter" in written.outcomes[0].stopped


def test_without_a_fallback_the_contracts_are_named(inputs: EngineInputs, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"rounds": 0, "fallback": "none"})
    with pytest.raises(NotWrittenError, match="family/rmsnorm"):
        write(inputs, tmp_path, says("no"), settings)


def test_a_model_that_is_not_served_is_noticed_before_anything_is_asked(inputs: EngineInputs, tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="does not serve 'other', but scripted"):
        write(inputs, tmp_path, says("x"), SETTINGS.model_copy(update={"model": "other"}))
