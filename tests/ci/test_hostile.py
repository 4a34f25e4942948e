"""Everything that the job that may write refuses, with nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.ci.untrusted import HostileError
from metainfer.forge.local import LocalForge
from tests.ci import attacks_on_bundles, attacks_on_reports
from tests.ci.attacks import ATTACKS, TOKEN, Spoil, publish
from tests.ci.repositories import Scene
from tests.forge.engines import refs

FILLED_BY = (attacks_on_bundles, attacks_on_reports)
"""Importing them puts their attacks on the list."""


@pytest.mark.parametrize(("name", "spoil", "message"), ATTACKS, ids=[name for name, _, _ in ATTACKS])
def test_hostile_folders_are_refused_and_nothing_is_written(
    scene: Scene, report: Path, name: str, spoil: Spoil, message: str
) -> None:
    spoil(scene, report)
    before = refs(scene.forge)
    objects = everything_in(scene.forge)
    with pytest.raises(HostileError, match=message) as refused:
        publish(scene, report, environment={"METAINFER_GITHUB_TOKEN": "plain-looking-words"})
    assert refs(scene.forge) == before
    assert everything_in(scene.forge) == objects
    assert not any(line.lstrip().startswith("::") for line in str(refused.value).splitlines())
    assert TOKEN not in str(refused.value)


def everything_in(forge: LocalForge) -> set[str]:
    """Every file of the bare repository: no object was written either."""
    return {str(path.relative_to(forge.repo.git_dir)) for path in forge.repo.git_dir.rglob("*")}
