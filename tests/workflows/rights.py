"""What GitHub reads from workflow files before a job starts: which events start which, and each token's rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.workflows.acting import ROOT, load

WORKFLOWS = ROOT / ".github/workflows"
OURS = "ci.yml"
"""Tests metainfer itself; every other file is for repositories that use it."""
_NO_API = frozenset({"id-token"})
_LEVELS = ("", "read", "write")
_PULL_DEFAULTS = ("opened", "synchronize", "reopened")


def rights_of_jobs(workflow: str) -> dict[str, dict[str, str]]:
    """Rights of the token of each job that has steps, by job id, in the words of the API; called files are followed."""
    found: dict[str, dict[str, str]] = {}
    _follow(WORKFLOWS / workflow, None, found)
    return found


def _follow(file: Path, granted: Mapping[str, str] | None, found: dict[str, dict[str, str]]) -> None:
    for job, content in load(file)["jobs"].items():
        rights: dict[str, str] = content["permissions"]
        for name, level in rights.items():
            enough = granted is None or _LEVELS.index(granted.get(name, "")) >= _LEVELS.index(level)
            assert enough, f"{file.name}: {job}: GitHub starts no job that wants more than its caller has: {name}"
        if "uses" in content:
            _follow(WORKFLOWS / Path(content["uses"]).name, rights, found)
            continue
        asked = {name.replace("-", "_"): level for name, level in rights.items() if name not in _NO_API}
        assert found.setdefault(job, asked) == asked, f"{file.name}: two jobs {job} with different rights in one run"


def started_by(event: str, *, action: str = "", branch: str = "", paths: Sequence[str] = ()) -> list[str]:
    """The files that GitHub starts for an event, by their filters on its action, base branch and changed paths."""
    files = [file for file in sorted(WORKFLOWS.glob("*.yml")) if file.name != OURS]
    return [file.name for file in files if _starts(load(file)["on"], event, action, branch, paths)]


def _starts(on: Mapping[str, Any], event: str, action: str, branch: str, paths: Sequence[str]) -> bool:
    if event not in on:
        return False
    filters: Mapping[str, Any] = on[event] if isinstance(on[event], Mapping) else {}
    assert set(filters) <= {"types", "branches", "paths", "inputs"}, f"{event}: a filter that is not known here"
    types = filters.get("types", _PULL_DEFAULTS if event == "pull_request" else None)
    if types is not None and action not in types:
        return False
    if "branches" in filters and branch not in filters["branches"]:
        return False
    folders = [pattern.removesuffix("**") for pattern in filters.get("paths", ())]
    assert all(folder.endswith("/") for folder in folders), f"{event}: a pattern that is not known here"
    return not folders or any(path.startswith(folder) for path in paths for folder in folders)
