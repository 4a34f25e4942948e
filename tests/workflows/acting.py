"""Workflows run for real by act, in host mode: real jobs and steps, stand-ins for actions that need a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ACTIONS = Path(__file__).parent / "actions"
STAND_INS = {
    "actions/checkout": "checkout",
    "actions/setup-python": "setup-python",
    "actions/upload-artifact": "upload-artifact",
    "actions/download-artifact": "download-artifact",
    "actions/attest-build-provenance": "attest",
}
_LABELS = ("ubuntu-24.04", "self-hosted", "gpu", "sm90")
REPOSITORY = "octo/engines"
"""What jobs are told to work for."""


def tool(name: str) -> str:
    """A program of the `github` extra, beside this Python or on PATH. Its absence is a failure, not a skip."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    assert found, f"{name} is not installed: pip install -e '.[dev,github]'"
    return found


def pinned_actions() -> dict[str, str]:
    """Every remote action that workflows and action.yml use → its `owner/name@sha`."""
    found = {}
    for file in (*sorted((ROOT / ".github/workflows").glob("*.yml")), ROOT / "action.yml"):
        for name, sha in re.findall(r"uses: ([\w.-]+/[\w./-]+)@([0-9a-f]{40})", file.read_text()):
            found[f"{name}@{sha}"] = name
    return found


@dataclass
class Runner:
    """A place to run workflows: a checkout to start from, and folders that the stand-ins use."""

    folder: Path
    origin: Path
    """The Git repository that jobs check out."""
    variables: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside the little that every run gets. Nothing of the caller's own reaches a step."""
    before_tool: str = ""
    """Lines of shell that the runner's `metainfer` begins with."""
    limit_s: float = 560
    """For a whole run."""

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def run(
        self,
        workflow: str,
        event: str,
        payload: Mapping[str, Any],
        *,
        secrets: Sequence[str] = (),
        sha: str,
        job: str = "",
    ) -> Outcome:
        """Run a workflow of this tree, or one job of it, for an event at commit `sha` of the origin."""
        work = self.folder / "act"
        shutil.rmtree(work, ignore_errors=True)
        home = self.folder / "home"
        if self.environment.get("GITHUB_RUN_ATTEMPT", "1") == "1":  # a run sees what its earlier attempts left alone
            shutil.rmtree(self.artifacts, ignore_errors=True)
        for place in (home, self.artifacts, self.folder / "tmp"):
            place.mkdir(exist_ok=True)
        # act takes the commit and branch from where it is started.
        subprocess.run(["git", "clone", "--quiet", str(self.origin), str(work)], check=True)
        subprocess.run(["git", "-C", str(work), "checkout", "--quiet", "-B", "main", sha], check=True)
        shutil.copytree(ROOT / ".github/workflows", work / ".github/workflows", dirs_exist_ok=True)
        event_file = self.folder / "event.json"
        event_file.write_text(json.dumps(payload))
        command = [tool("act"), event, "-W", f".github/workflows/{workflow}", "-e", str(event_file), "--json"]
        command += ["--no-cache-server", "--action-offline-mode", *(["-j", job] if job else [])]
        command += [part for label in _LABELS for part in ("-P", f"{label}=-self-hosted")]
        for use, name in pinned_actions().items():
            command += ["--local-repository", f"{use}={ACTIONS / STAND_INS[name]}"]
        variables = {"METAINFER_PREINSTALLED": "true", **self.variables}
        command += [part for name, value in variables.items() for part in ("--var", f"{name}={value}")]
        command += [part for secret in secrets for part in ("-s", secret)]
        steps = {
            "TEST_ORIGIN": str(self.origin),
            "TEST_ARTIFACTS": str(self.artifacts),
            "TEST_TOOL": str(ROOT),
            "METAINFER_CACHE": str(self.folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "GITHUB_REPOSITORY": REPOSITORY,
            **self.environment,
        }
        command += [part for name, value in steps.items() for part in ("--env", f"{name}={value}")]
        bins = self._bins()
        environment = {"PATH": f"{bins}:{os.environ['PATH']}", "HOME": str(home), "TMPDIR": str(self.folder / "tmp")}
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=self.limit_s
        )
        return Outcome.read(done)

    def _bins(self) -> Path:
        """A folder with `metainfer` and `python`: this tree's, by this interpreter."""
        bins = self.folder / "bin"
        bins.mkdir(exist_ok=True)
        script = bins / "metainfer"
        call = f'PYTHONPATH={ROOT} exec {sys.executable} -m metainfer "$@"'
        script.write_text(f"#!/bin/sh\n{self.before_tool}\n{call}\n")
        script.chmod(0o755)
        return bins


@dataclass(frozen=True)
class Outcome:
    """What became of a run. `jobs`: what each said, in the order in which jobs ended."""

    code: int
    jobs: Mapping[str, str]
    results: Mapping[str, str]
    text: str

    @classmethod
    def read(cls, done: subprocess.CompletedProcess[str]) -> Outcome:
        said: dict[str, list[str]] = {}
        results: dict[str, str] = {}
        plain = []
        for line in (done.stdout + "\n" + done.stderr).splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                plain.append(line)
                continue
            job = str(record.get("jobID") or record.get("job") or "")
            name = str(record.get("job") or job).strip()
            said.setdefault(name, []).append(str(record.get("msg", "")).rstrip("\n"))
            if result := record.get("jobResult"):
                results[name] = str(result)
        jobs = {name: "\n".join(lines) for name, lines in said.items()}
        text = "\n".join([*plain, *(f"== {name}\n{lines}" for name, lines in jobs.items())])
        return cls(done.returncode, jobs, results, text)

    def result(self, job: str) -> str | None:
        """How a job ended; None if it did not run. `job` as act names it, without the number that a matrix adds."""
        return next((result for name, result in self.results.items() if _plain(name) == job), None)

    def endings(self, last: str) -> list[str]:
        """How all jobs ended that are called so, by whatever workflows they were called."""
        return [result for name, result in self.results.items() if _plain(name).rpartition("/")[2] == last]

    def said(self, job: str) -> str:
        """The log of a job; empty if it did not run."""
        return "\n".join(text for name, text in self.jobs.items() if _plain(name) == job)


def _plain(name: str) -> str:
    return re.sub(r"-[0-9]+ *(?=/|$)", "", name)


def load(file: Path) -> dict[str, Any]:
    """A workflow or action as data. YAML 1.1 reads the key `on` as a boolean."""
    data = yaml.safe_load(file.read_text("utf-8"))
    if True in data:
        data["on"] = data.pop(True)
    return dict(data)
