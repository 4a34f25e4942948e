"""One stub of GitHub for all tests of a worker; each test makes repositories of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.github.openapi import checked_answers
from tests.github.stub import Stub, stub_server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def running_stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    with stub_server(tmp_path_factory.mktemp("stub")) as stub:
        yield stub


@pytest.fixture
def stub(running_stub: Stub) -> Iterator[Stub]:
    """The stub without faults. A call that it has no answer for fails the test."""
    running_stub.reset()
    yield running_stub
    assert running_stub.journal.unknown == []
    assert checked_answers(running_stub.journal.answers) == []


@pytest.fixture
def slug() -> str:
    """The name of a repository that no other test uses."""
    return f"octo/engines-{next(_numbers)}"
