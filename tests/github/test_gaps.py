"""A gap of an emulator hides a test there alone: the same test runs on the stub."""

from __future__ import annotations

import pytest

from tests.github import (
    test_contract_merging,
    test_contract_people,
    test_contract_publishing,
    test_contract_races,
    test_contract_reading,
    test_contract_releases,
)
from tests.github.emulators import EMULATORS
from tests.github.gaps import GAPS, gap_of

CONTRACT = (
    test_contract_merging,
    test_contract_people,
    test_contract_publishing,
    test_contract_races,
    test_contract_reading,
    test_contract_releases,
)


@pytest.mark.parametrize("name", EMULATORS)
def test_every_gap_names_tests_that_run_elsewhere(name: str) -> None:
    known = {test for module in CONTRACT for test in vars(module) if test.startswith("test_")}
    named = [test for tests in GAPS[name].values() for test in tests]
    assert sorted(set(named) - known) == []
    assert len(named) == len(set(named))
    assert all(gap_of(name, test) for test in named)
    assert not any(gap_of(place, test) for place in ("local", "stub") for test in named)
    assert len(named) < len(known) / 4
