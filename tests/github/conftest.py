"""One stub of GitHub for all tests of a worker; each test makes repositories of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.github.openapi import checked_answers
from tests.github.places import Acting, local_place, local_template, stub_place
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


@pytest.fixture(scope="session")
def local_forge_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return local_template(tmp_path_factory.mktemp("local"))


@pytest.fixture
def on_stub(stub: Stub, slug: str, tmp_path: Path) -> Acting:
    """A fresh repository on the stub."""
    return Acting(stub_place(stub, slug, tmp_path))


@pytest.fixture(params=["local", "stub"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Acting:
    """A fresh repository at each place in turn."""
    if request.param == "local":
        return Acting(local_place(request.getfixturevalue("local_forge_template"), tmp_path))
    return request.getfixturevalue("on_stub")  # type: ignore[no-any-return]
