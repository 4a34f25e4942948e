"""Names of engines: refused in the spec, with the reason, when some later place could not take them."""

from __future__ import annotations

import importlib.metadata
import keyword
import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metainfer.forge.paths import check_engine_name, path_complaints
from metainfer.generate.specializer import DEPENDENCIES
from metainfer.spec.names import name_complaint, package_name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("con", "no folder can be called con on Windows; add a word, as in con-engine"),
        ("nul", "on Windows"),
        ("aux.v2", "no folder can be called aux on Windows"),
        ("com1", "on Windows"),
        ("git", "mean something to Git"),
        ("codeowners", "mean something to Git"),
        ("codeowners.v2", "mean something to Git"),
        ("tiny.lock", "Git keeps its locks"),
        ("class", "package would be called class, which is a keyword of Python"),
        ("torch", "hide the library that has this name, which engines need"),
        ("prometheus-client", "package would be called prometheus_client, and hide the library"),
        ("prometheus.client", "package would be called prometheus_client, and hide the library"),
        ("json", "hide the module of Python that has this name; add a word, as in json-engine"),
        ("asyncio", "hide the module of Python"),
        ("tests", "hide what has this name beside the engine"),
        ("metainfer", "hide what has this name beside the engine"),
        ("Qwen", "lower-case letters"),
        ("a" * 65, "at most 64"),
    ],
)
def test_a_name_that_some_place_cannot_take_is_refused_with_the_reason(name: str, reason: str) -> None:
    assert reason in (name_complaint(name) or "")


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b-cpu", "tiny", "torch-cpu", "class-2", "3", "git-coder", "lock"])
def test_ordinary_names_are_fine(name: str) -> None:
    assert name_complaint(name) is None


def test_no_library_that_an_engine_imports_can_be_hidden() -> None:
    needed = {normal(re.split(r"[^\w.-]", line)[0]) for line in (*DEPENDENCIES, "pydantic", "starlette")}
    owners = importlib.metadata.packages_distributions()
    packages = {package for package, names in owners.items() if needed & set(map(normal, names))}
    assert packages >= {"torch", "fastapi", "starlette", "numpy"}
    assert sorted(package for package in packages if name_complaint(package.replace("_", "-")) is None) == []


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@given(st.from_regex(r"[a-z0-9]{1,6}([._-][a-z0-9]{1,6}){0,4}", fullmatch=True))
@example("a.lock")
@example("prn.a")
def test_what_a_spec_accepts_can_be_published_and_imported(name: str) -> None:
    if name_complaint(name) is not None:
        return
    package = package_name(name)
    assert check_engine_name(name) == name
    folder = f"engines/{name}/"
    assert path_complaints([f"{folder}{package}/model.py"], [folder]) == []
    assert package.isidentifier()
    assert not keyword.iskeyword(package)
    assert package not in sys.stdlib_module_names
