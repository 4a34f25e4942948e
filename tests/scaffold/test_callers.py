"""The thin callers fit the workflows that they call: inputs, secrets, permissions, triggers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from metainfer.errors import InputError
from metainfer.scaffold.workflows import TEMPLATES, Source, callers, find_source, pinned_in

WORKFLOWS = Path(__file__).parents[2] / ".github/workflows"
SOURCE = Source("octo/metainfer", "a" * 40, "v1.2.3")
RANK = {"none": 0, "read": 1, "write": 2}


class _Loader(yaml.SafeLoader):
    """`on` is a key here, not a truth."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":bool")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str | bytes) -> Any:
    return yaml.load(text, _Loader)


FILES = callers(SOURCE)


def job_of(path: str) -> dict[str, Any]:
    (job,) = load(FILES[path])["jobs"].values()
    return dict(job)


def original(job: dict[str, Any]) -> Any:
    file, _, commit = job["uses"].removeprefix("octo/metainfer/.github/workflows/").partition("@")
    assert commit == SOURCE.commit
    return load((WORKFLOWS / file).read_text())


def needed(workflow: dict[str, Any]) -> dict[str, str]:
    """The widest permissions of its jobs, and of those that it calls in turn."""
    found: dict[str, str] = {}
    for job in workflow["jobs"].values():
        given = [job.get("permissions") or {}]
        if str(job.get("uses", "")).startswith("./.github/workflows/"):
            given.append(needed(load((WORKFLOWS / Path(job["uses"]).name).read_text())))
        for permissions in given:
            for name, level in permissions.items():
                found[name] = max(found.get(name, "none"), level, key=RANK.__getitem__)
    return found


def test_each_workflow_that_reacts_to_events_has_a_caller_but_our_own_ci() -> None:
    reacting = set()
    for path in WORKFLOWS.glob("*.yml"):
        triggers = set(load(path.read_text())["on"])
        if "workflow_call" in triggers and triggers != {"workflow_call"}:
            reacting.add(f"metainfer-{path.name}")
    assert {Path(path).name for path in FILES} == reacting


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_caller_grants_exactly_what_is_needed_and_nothing_at_its_top(path: str) -> None:
    job = job_of(path)
    assert load(FILES[path])["permissions"] == {}
    assert job["permissions"] == needed(original(job))


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_caller_passes_what_is_declared(path: str) -> None:
    job = job_of(path)
    declared = original(job)["on"]["workflow_call"] or {}
    own = {name for name in declared.get("inputs") or {} if not name.startswith("metainfer-")}
    assert set(job.get("with") or {}) == own
    assert set(job.get("secrets") or {}) == set(declared.get("secrets") or {})


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_caller_has_the_triggers_of_its_original(path: str) -> None:
    """Names of workflows differ, paths may be more, and a dispatch asks for the same."""
    mine, theirs = load(FILES[path])["on"], original(job_of(path))["on"]
    theirs.pop("workflow_call")
    assert set(mine) == set(theirs)
    for event, given in theirs.items():
        if isinstance(given, dict) and "paths" in given:
            assert set(given["paths"]) <= set(mine[event]["paths"])
            assert {k: v for k, v in mine[event].items() if k != "paths"} == {
                k: v for k, v in given.items() if k != "paths"
            }
        else:
            assert mine[event] == given, event


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_caller_is_named_so_that_its_siblings_find_it(path: str) -> None:
    name = Path(path).stem.removeprefix("metainfer-")
    assert load(FILES[path])["name"] == f"metainfer {name}"
    assert b"@SOURCE@" not in FILES[path]
    assert b"# v1.2.3" in FILES[path]


def test_a_tag_is_pinned_by_its_commit_and_shown_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "octo/metainfer.git"
    command = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(folder)], check=True)
    subprocess.run([*command, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*command, "tag", "-a", "v1", "-m", "v1"], check=True)
    commit = subprocess.run([*command, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    server = f"file://{tmp_path}"
    assert find_source("octo/metainfer@v1", server=server) == Source("octo/metainfer", commit, "v1")
    assert find_source(f"octo/metainfer@{commit}", server=server) == Source("octo/metainfer", commit, commit[:12])
    with pytest.raises(InputError, match="is a branch"):
        find_source("octo/metainfer@main", server=server)


def test_callers_tell_what_they_are_pinned_to_while_they_agree(tmp_path: Path) -> None:
    assert pinned_in(tmp_path) is None
    for path, content in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    assert pinned_in(tmp_path) == SOURCE
    (tmp_path / path).write_bytes(content.replace(b"a" * 40, b"b" * 40))
    assert pinned_in(tmp_path) is None


@pytest.mark.parametrize("given", ["octo/metainfer", "octo@v1", "octo/meta infer@v1", "../x@v1", "o/r@x y", "o/r@-x"])
def test_what_names_no_place_is_refused(given: str) -> None:
    with pytest.raises(InputError):
        find_source(given, server="file:///nowhere")


def test_the_templates_travel_with_the_package() -> None:
    assert TEMPLATES.is_relative_to(Path(__file__).parents[2] / "metainfer")
