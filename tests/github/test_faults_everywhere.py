"""Every operation of the product on GitHub, with every fault at each of its calls. Takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.github.faulty import QUICK_FAULTS, Ground, Operation, Trial
from tests.github.faulty_publishing import FILES, PUBLISHING
from tests.github.faulty_reviewing import REVIEWING
from tests.github.stub import Stub

pytestmark = pytest.mark.slow
OPERATIONS = (*PUBLISHING, *REVIEWING)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_whatever_happens_to_whichever_call_the_next_run_goes_on(
    operation: Operation, stub: Stub, slug: str, tmp_path: Path
) -> None:
    trial = Trial(operation, Ground(stub, slug, tmp_path, FILES))
    found = [
        problem
        for nth in range(1, len(trial.calls) + 1)
        for fault in QUICK_FAULTS
        for problem in trial.strike(fault, nth)
    ]
    assert not found, "\n".join(found)
