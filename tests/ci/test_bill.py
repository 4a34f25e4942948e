"""What a model cost, as the pull request says it, is what the job with its key has booked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from metainfer.agents.answering import Answered
from metainfer.agents.budget import Entry, Purpose
from metainfer.ci.bundle import read_bundle
from metainfer.ci.trust import require_bill
from metainfer.ci.untrusted import HostileError
from metainfer.generate.manifest import AgentRecord
from tests.ci.attacks import publish
from tests.ci.repositories import Scene
from tests.forge.engines import refs


def test_a_manifest_says_what_was_booked(scene: Scene) -> None:
    bundle = read_bundle(scene.bundle)
    record = AgentRecord(settings={}, tokens=1234, cost_usd=0.05)
    asked = replace(bundle, manifest=bundle.manifest.model_copy(update={"agent": record}))
    spent = Entry(event="settled", call=2, purpose=Purpose(role="all", subject="all"), usd=0.0500000004, tokens=1234)
    require_bill(asked, Answered(1, {}, spent, "").bill)
    for one, bill in ((asked, "1233,0.05"), (asked, "1234,0.5"), (asked, "x"), (bundle, "0,0.0")):
        with pytest.raises(HostileError, match="not what was booked for this run"):
            require_bill(one, bill)


def test_another_bill_is_refused_and_nothing_is_written(scene: Scene, report: Path) -> None:
    """This bundle is of an engine that no model was asked for."""
    before = refs(scene.forge)
    with pytest.raises(HostileError, match="not what was booked"):
        publish(scene, report, bill="10,0.0")
    assert refs(scene.forge) == before
    assert publish(scene, report, bill="").wrote
