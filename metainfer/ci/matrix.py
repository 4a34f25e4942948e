"""Jobs for GitHub's matrices: one per engine, on the runner that its platform needs, never more than a matrix holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from metainfer.ci.affected import Affected, Change
from metainfer.errors import InputError

MAX_JOBS = 255
"""GitHub's matrices end at 256."""
CPU_RUNNER = ("ubuntu-24.04",)
_GPU = ("cuda-", "hip-")


def runner_labels(platform: str, cpu_runner: Sequence[str] = CPU_RUNNER) -> list[str]:
    """The labels of `runs-on` for a platform of the spec.

    >>> runner_labels("cpu-x86-avx2"), runner_labels("cuda-sm90")
    (['ubuntu-24.04'], ['self-hosted', 'gpu', 'sm90'])
    """
    if platform.startswith(_GPU):
        return ["self-hosted", "gpu", platform.partition("-")[2]]
    return list(cpu_runner)


def parse_labels(text: str) -> list[str]:
    """Labels as a repository variable holds them: one, several with commas, or a JSON list. InputError for others."""
    try:
        given = json.loads(text) if text.lstrip().startswith("[") else [part.strip() for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{text!r}: no list of runner labels: {error}") from error
    if not given or not all(isinstance(label, str) and label for label in given):
        raise InputError(f"{text!r}: no list of runner labels; write ubuntu-24.04, or self-hosted,linux")
    return list(given)


def chunks(change: Change, cpu_runner: Sequence[str] = CPU_RUNNER) -> list[list[dict[str, Any]]]:
    """The jobs in as few matrices as they fit; empty if nothing is affected. InputError if no two levels hold them."""
    jobs = [_job(one, cpu_runner) for one in change.affected]
    found = [jobs[start : start + MAX_JOBS] for start in range(0, len(jobs), MAX_JOBS)]
    if len(found) > MAX_JOBS:
        raise InputError(f"{len(jobs)} engines at once are more than {MAX_JOBS * MAX_JOBS}; name some with --spec")
    return found


def _job(one: Affected, cpu_runner: Sequence[str]) -> dict[str, Any]:
    # Strings alone: the inputs of a reusable workflow hold no lists.
    return {
        "engine": one.engine,
        "spec": one.spec_path,
        "platform": one.platform,
        "runner": json.dumps(runner_labels(one.platform, cpu_runner)),
    }
