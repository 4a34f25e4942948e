"""One repository for each test; one server for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.github.openapi import checked_answers
from tests.github.stub import Stub, stub_server
from tests.review.place import Place
from tests.review.repository import Heads

_NUMBERS = itertools.count(1)


@pytest.fixture
def heads(tmp_path: Path) -> Heads:
    return Heads(tmp_path / "repo.git")


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    with stub_server(tmp_path_factory.mktemp("github")) as server:
        yield server


@pytest.fixture
def place(stub: Stub, tmp_path: Path) -> Iterator[Place]:
    stub.reset()
    yield Place(stub, f"octo/engines-{next(_NUMBERS)}", tmp_path)
    assert stub.journal.unknown == [], "the stub was asked what it does not know"
    assert checked_answers(stub.journal.answers) == []
