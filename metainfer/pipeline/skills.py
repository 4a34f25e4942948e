"""The skills of one engine: one for each contract that describes units, one for reviewing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metainfer.agents.skills import Skill, complaints, reviewing_skill, skill_of
from metainfer.errors import InputError
from metainfer.generate.blueprint import NEEDED_UNITS
from metainfer.pipeline.agents import brief_of
from metainfer.pipeline.unit_judge import contracts_to_write

if TYPE_CHECKING:
    from metainfer.generate.inputs import EngineInputs
    from metainfer.spec.models import Generation


def export_skills(inputs: EngineInputs, settings: Generation) -> list[Skill]:
    """All skills; `settings.reference` says whether they hold exemplars. InputError for one that is not valid."""
    made = [
        skill_of(brief_of(inputs, contract, settings), inputs.name, inputs.spec_path)
        for contract in contracts_to_write(inputs, settings.contracts)
    ]
    made.append(reviewing_skill(inputs.name, NEEDED_UNITS))
    if found := [complaint for skill in made for complaint in complaints(skill)]:
        raise InputError("\n".join(found))
    return made
