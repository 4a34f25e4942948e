"""A role that gives no answer costs nothing but its calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from metainfer.ckb.mutants import default_deployments
from metainfer.generate.scratch import scratch_inputs
from metainfer.pipeline.agents import AgentAccess, agent_settings, write_units
from metainfer.progress import Silent
from metainfer.sandbox import Sandbox
from metainfer.spec.models import Generation
from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS, SWIGLU, fenced
from tests.agents.roles_at_work import CKB, Body, by_role
from tests.agents.scripted_endpoint import answers, scripted

SETTINGS = Generation(
    backend="agents", model="scripted", reference="none", contracts=["family/rmsnorm", "family/swiglu-mlp"], rounds=1
)


def implementer(body: Body) -> str:
    if "Write SwiGLU" in body["messages"][1]["content"]:
        return fenced(SWIGLU)
    return fenced(RMSNORM if len(body["messages"]) > 2 else RMSNORM_WITHOUT_EPS)


@pytest.mark.slow
def test_roles_that_answer_nonsense_are_skipped_and_the_units_are_written(tmp_path: Path) -> None:
    deployment = default_deployments()[0]
    inputs = scratch_inputs(CKB, deployment.facts, deployment.model)
    with scripted(answers(by_role(implementer=implementer))) as endpoint:
        written = write_units(
            replace(inputs, agent=agent_settings(SETTINGS)),
            SETTINGS,
            AgentAccess(endpoint.base_url),
            folder=tmp_path / "run",
            state=tmp_path / "state",
            sandbox=Sandbox(),
            progress=Silent(),
        )
    assert [unit.contract for unit in written.units] == ["family/rmsnorm", "family/swiglu-mlp"]
    assert written.record.unreviewed == ("family/rmsnorm", "family/swiglu-mlp")
    assert written.record.objections == ()
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert not plan["planned"]
    assert "no answer that can be used" in plan["why"]
    lessons = json.loads((tmp_path / "run" / "lessons.json").read_text())
    assert list(lessons["skipped"]) == ["family/rmsnorm"]
    assert not (tmp_path / "run" / "proposal.json").exists()
