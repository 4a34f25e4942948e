"""`--roles`: who takes part in a run."""

from __future__ import annotations

import pytest

from metainfer.commands.run import _roles as roles
from metainfer.errors import InputError
from metainfer.spec.models import Generation


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (None, ["planner", "reviewer", "consolidator"]),
        ("none", []),
        ("reviewer", ["reviewer"]),
        ("consolidator, planner", ["planner", "consolidator"]),
    ],
)
def test_who_takes_part_is_said_by_name_and_in_one_order(text: str | None, wanted: list[str]) -> None:
    assert Generation.model_validate(Generation().model_dump() | roles(text)).roles == wanted


@pytest.mark.parametrize("text", ["", "everybody", "planner,none", "planner,planner"])
def test_what_is_no_role_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match=r"--roles.*write none, or each once of planner,reviewer,consolidator"):
        roles(text)
