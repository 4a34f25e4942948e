"""Every operation of the product on GitHub, with every fault at each of its calls. Takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.forge.github import connect, mirror
from tests.github.faulty import ANY_AT_READS, QUICK_FAULTS, SILENCE, Ground, Operation, Trial
from tests.github.faulty_publishing import CREATED, FILES, PUBLISHING
from tests.github.faulty_reviewing import REPORTED, REVIEWING
from tests.github.stub import Stub

pytestmark = pytest.mark.slow
OPERATIONS = (*PUBLISHING, *REVIEWING)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_whatever_happens_to_whichever_call_the_next_run_goes_on(
    operation: Operation, stub: Stub, slug: str, tmp_path: Path
) -> None:
    trial = Trial(operation, Ground(stub, slug, tmp_path, FILES))
    problems = trial.strike_all(ANY_AT_READS, QUICK_FAULTS)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("operation", [CREATED, REPORTED], ids=str)
def test_a_server_that_falls_silent_is_given_up_and_the_next_run_goes_on(
    operation: Operation, stub: Stub, slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "TIMEOUT_S", 1)
    monkeypatch.setattr(mirror, "_STALLED_S", 1)
    trial = Trial(operation, Ground(stub, slug, tmp_path, FILES))
    problems = trial.strike_all(SILENCE, SILENCE)
    assert not problems, "\n".join(problems)
