"""One stub of GitHub for all tests of a worker; each test makes repositories of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.github.emulators import EMULATORS, Running, running
from tests.github.gaps import gap_of
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


@pytest.fixture(scope="session")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Running]]:
    """Each is started when it is first asked for, and serves all tests of a worker."""
    with ExitStack() as stack:

        @cache
        def start(name: str) -> Running:
            return stack.enter_context(running(name, tmp_path_factory.mktemp(name)))

        yield start


@pytest.fixture(params=["local", "stub", *(pytest.param(name, marks=pytest.mark.github) for name in EMULATORS)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Acting:
    """A fresh repository at each place in turn. What a place is known not to be able to do is skipped there."""
    if request.param == "local":
        return Acting(local_place(request.getfixturevalue("local_forge_template"), tmp_path))
    if request.param == "stub":
        return request.getfixturevalue("on_stub")  # type: ignore[no-any-return]
    if gap := gap_of(request.param, request.node.originalname):
        pytest.skip(gap)
    emulator = request.getfixturevalue("emulators")(request.param)
    return Acting(emulator.place(f"engines-{next(_numbers)}", tmp_path))
