"""A fault at each single call of a publication: one pull request, nothing said twice, and a next run that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.github.faulty import AT_READS, AT_WRITES, Ground, Operation, Trial
from tests.github.faulty_publishing import BLOCKED, CREATED, FILES
from tests.github.stub import Stub


@pytest.mark.parametrize("operation", [CREATED, BLOCKED], ids=str)
def test_whichever_call_of_a_publication_fails_the_next_run_goes_on(
    operation: Operation, stub: Stub, slug: str, tmp_path: Path
) -> None:
    trial = Trial(operation, Ground(stub, slug, tmp_path, FILES))
    problems = trial.strike_all(AT_READS, AT_WRITES)
    assert not problems, "\n".join(problems)
