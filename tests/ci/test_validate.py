"""The job that runs what was generated: what it refuses before anything runs, and what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from metainfer.ci.bundle import read_bundle
from metainfer.ci.judging import Effort, judge_bundle
from metainfer.ci.making import make_candidate
from metainfer.ci.report import read_report
from metainfer.ci.secrets import SecretInReachError
from metainfer.ci.untrusted import HostileError
from metainfer.errors import InputError
from metainfer.progress import Silent
from tests.ci.attacks import edit_manifest, publish, put
from tests.ci.repositories import ENGINE, ROOT, SPEC, Scene, git


class Ran(Silent):
    """Fails the test as soon as a gate begins."""

    def start(self, step: str, total: float | None = None) -> None:
        assert step not in ("spec", "static", "unit", "numerics", "serving"), f"the gate {step} began"


def judge(scene: Scene, out: Path, environment: dict[str, str]) -> None:
    judge_bundle(
        scene.bundle,
        out,
        scene.deployment,
        cache=scene.cache,
        state=scene.work / ".metainfer",
        progress=Ran(),
        environment=environment,
    )


def test_with_a_secret_in_reach_nothing_runs(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(SecretInReachError, match="OPENAI_API_KEY"):
        judge(scene, tmp_path / "report", {"OPENAI_API_KEY": "x"})
    assert not (tmp_path / "report").exists()


def test_the_command_refuses_it_too(scene: Scene, tmp_path: Path) -> None:
    base = git(scene.work, "rev-parse", "HEAD")
    command = [sys.executable, "-m", "metainfer", "ci", "validate", str(scene.bundle), "--base", base]
    command += ["--spec", SPEC, "--out", str(tmp_path / "report")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GITHUB_TOKEN": "x"}
    done = subprocess.run(command, cwd=scene.work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "GITHUB_TOKEN: set, and generated code is about to run here" in done.stderr


def test_an_engine_that_trusted_code_does_not_make_never_runs(scene: Scene, tmp_path: Path) -> None:
    put(scene, "engine/tiny_qwen3/extra.py", "import os\n")
    with pytest.raises(HostileError, match="not what the base's knowledge makes"):
        judge(scene, tmp_path / "report", {})


def test_an_engine_of_another_model_never_runs(scene: Scene, tmp_path: Path) -> None:
    edit_manifest(scene, lambda m: m["model"].__setitem__("digest", f"sha256:{'0' * 64}"))
    with pytest.raises(HostileError):
        judge(scene, tmp_path / "report", {})


def test_a_work_tree_that_is_not_at_the_base_is_refused(original: Scene, tmp_path: Path) -> None:
    from metainfer.ci.deployment import deployment_at
    from metainfer.ci.repository import Checkout

    work = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(original.work), str(work))
    checkout, base = Checkout(work), git(work, "rev-parse", "HEAD")
    with pytest.raises(InputError, match="40 hex digits"):
        deployment_at(checkout, "main", SPEC, tmp_path)
    with pytest.raises(InputError, match="has no specs/other"):
        deployment_at(checkout, base, "specs/other.yaml", tmp_path)
    (work / SPEC).open("a").write("# mine\n")
    with pytest.raises(InputError, match="is not what commit"):
        deployment_at(checkout, base, SPEC, tmp_path)
    git(work, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "-am", "Mine")
    with pytest.raises(InputError, match="not at the base"):
        deployment_at(checkout, base, SPEC, tmp_path)


def test_a_candidate_whose_pull_request_is_there_is_not_made_again(scene: Scene, report: Path, tmp_path: Path) -> None:
    publish(scene, report)
    made = make_candidate(scene.deployment, tmp_path / "again", cache=scene.cache, progress=Silent(), forge=scene.forge)
    assert (made.state, made.number) == ("unchanged", 1)
    assert not (tmp_path / "again").exists()


def test_the_same_commit_makes_the_same_bundle(scene: Scene, tmp_path: Path) -> None:
    make_candidate(scene.deployment, tmp_path / "again", cache=scene.cache, progress=Silent())
    assert read_bundle(tmp_path / "again") == read_bundle(scene.bundle)


@pytest.mark.slow
def test_a_real_verdict_is_one_that_publishing_accepts(scene: Scene, tmp_path: Path) -> None:
    """Every gate and the benchmark, by the code of the job; what it writes passes the strict reader."""
    evidence = judge_bundle(
        scene.bundle,
        tmp_path / "report",
        scene.deployment,
        cache=scene.cache,
        state=scene.work / ".metainfer",
        progress=Silent(),
        effort=Effort(repeats=1),
        environment={},
    )
    assert evidence.green
    found = read_report(tmp_path / "report", ENGINE, scene.request.input_hash, scene.deployment.spec)
    assert found.red == []
    assert found.bench is not None
    assert publish(scene, tmp_path / "report").wrote
    assert json.loads((tmp_path / "report/bench.json").read_text())["engine"] == ENGINE
