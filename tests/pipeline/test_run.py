"""One run from a spec to a merged, tagged engine, on real parts: real Git, real gates, a real tiny model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from metainfer.ckb.proposals import StaleProposalError
from metainfer.commands.run import exit_code
from metainfer.errors import ExitCode
from metainfer.forge.protocol import Identity, MergeRefusedError, Status
from metainfer.forge.setup import create_local_forge
from metainfer.generate.manifest import read_manifest
from metainfer.pipeline.record import list_runs
from metainfer.pipeline.run import RunRequest, RunResult, run
from metainfer.progress import Silent
from metainfer.release.tag import release
from metainfer.spec.document import DocumentError
from tests.ckb.lesson import lesson

ROOT = Path(__file__).parents[2]
REVIEWER = Identity("Reviewer", "reviewer@example.org")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this tree's knowledge and specs, and a local forge beside it."""
    folder = tmp_path_factory.mktemp("repository")
    work = folder / "work"
    work.mkdir()
    for name in ("ckb", "specs"):
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "Reviewer"],
        ["config", "user.email", "reviewer@example.org"],
        ["add", "."],
        ["commit", "--quiet", "-m", "Start"],
    ):
        subprocess.run(["git", *command], cwd=work, check=True)
    create_local_forge(work, folder / "forge.git", "reviewer@example.org")
    return folder


def request(scratch: Path, spec: str, **options: object) -> RunRequest:
    work = scratch / "work"
    return RunRequest(
        spec_path=work / "specs" / f"{spec}.yaml",
        repo_root=work,
        state=work / ".metainfer",
        cache=scratch / "cache",
        bench=False,
        **options,  # type: ignore[arg-type]
    )


def run_here(scratch: Path, spec: str, **options: object) -> RunResult:
    from metainfer.forge.setup import open_forge

    return run(request(scratch, spec, **options), open_forge(scratch / "work"), Silent())


@pytest.fixture(scope="module")
def first(scratch: Path) -> RunResult:
    return run_here(scratch, "tiny-qwen3")


def test_a_dry_run_names_every_unit_and_writes_nothing(scratch: Path) -> None:
    result = run_here(scratch, "tiny-qwen2", dry_run=True)
    assert result.status == "planned"
    assert "CausalLM" in result.plan
    assert not any(record.engine == "tiny-qwen2" for record in list_runs(scratch / "work" / ".metainfer"))


def test_a_dry_run_refuses_a_spec_under_another_name(scratch: Path, tmp_path: Path) -> None:
    from metainfer.forge.setup import open_forge

    spec = Path(shutil.copyfile(ROOT / "specs/tiny-qwen2.yaml", tmp_path / "other.yaml"))
    asked = replace(request(scratch, "tiny-qwen2", dry_run=True), spec_path=spec)
    with pytest.raises(DocumentError, match=r"other\.yaml:4:1: name: is tiny-qwen2, but the file is other\.yaml"):
        run(asked, open_forge(scratch / "work"), Silent())


def a_failure_mode(folder: Path) -> Path:
    """A proposal that a person might write, as a file."""
    path = folder / "delta.json"
    path.write_text(json.dumps(lesson(ROOT / "ckb", "a reviewer")))
    return path


def test_a_dry_run_says_what_knowledge_would_be_proposed(scratch: Path, tmp_path: Path) -> None:
    result = run_here(scratch, "tiny-qwen2", dry_run=True, proposals=[a_failure_mode(tmp_path)])
    assert list(result.knowledge.files) == ["ckb/general/paged-kv-cache/contract.yaml"]
    assert any("lost-on-abort" in change.words for change in result.knowledge.changes)
    assert all("blocks_lost 3" in change.evidence for change in result.knowledge.changes)


def test_a_proposal_for_another_version_is_refused_before_anything_is_made(scratch: Path, tmp_path: Path) -> None:
    path = a_failure_mode(tmp_path)
    path.write_text(path.read_text().replace('"version": ', '"version": 4'))
    with pytest.raises(StaleProposalError, match="general/paged-kv-cache"):
        run_here(scratch, "tiny-qwen2", proposals=[path])
    assert not any(record.engine == "tiny-qwen2" for record in list_runs(scratch / "work" / ".metainfer"))


def test_every_gate_passes_and_a_pull_request_is_opened(first: RunResult) -> None:
    assert [(report.gate, report.verdict) for report in first.gates] == [
        (gate, "passed") for gate in ("spec", "static", "unit", "numerics", "serving")
    ]
    assert first.status == "published"
    assert first.outcome is not None
    assert first.outcome.status == Status.CREATED


def test_a_second_run_finds_nothing_to_do(scratch: Path, first: RunResult) -> None:
    again = run_here(scratch, "tiny-qwen3")
    assert again.status == "unchanged"
    assert again.outcome is not None
    assert first.outcome is not None
    assert again.outcome.number == first.outcome.number
    assert exit_code(again) is ExitCode.OK


def test_knowledge_that_was_left_behind_is_no_success(scratch: Path, first: RunResult, tmp_path: Path) -> None:
    result = run_here(scratch, "tiny-qwen3", proposals=[a_failure_mode(tmp_path)])
    assert result.status == "unchanged"
    assert "the knowledge was not proposed" in result.message
    assert exit_code(result) is ExitCode.CONFLICT


def test_the_proposed_engine_merges_after_a_review_and_is_tagged(scratch: Path, first: RunResult) -> None:
    from metainfer.forge.setup import open_forge

    forge = open_forge(scratch / "work")
    assert first.outcome is not None
    assert first.outcome.number is not None
    with pytest.raises(MergeRefusedError):
        forge.merge(first.outcome.number, REVIEWER)
    forge.approve(first.outcome.number, REVIEWER)
    merged = forge.merge(first.outcome.number, REVIEWER)
    made = release(forge, "tiny-qwen3", REVIEWER)
    assert made.tag == "tiny-qwen3/v0.1.0"
    assert made.commit == merged.commit
    assert run_here(scratch, "tiny-qwen3").status == "unchanged"


def test_the_engine_installs_and_runs_without_metainfer(first: RunResult, scratch: Path, tmp_path: Path) -> None:
    assert first.run_folder is not None
    engine = first.run_folder / "tiny-qwen3"
    manifest = read_manifest(engine)
    model = scratch / "cache" / "models" / manifest.model.digest.removeprefix("sha256:")
    code = (
        "import sys; sys.modules['metainfer'] = None; sys.modules['transformers'] = None\n"
        f"from {manifest.package}.__main__ import main\n"
        f"sys.exit(main(['generate', '--model', {str(model)!r}, 'Hello', '--max-tokens', '4']))"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(engine)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_evidence_is_in_the_tree_that_was_proposed(scratch: Path, first: RunResult) -> None:
    from metainfer.forge.setup import open_forge

    forge = open_forge(scratch / "work")
    assert first.outcome is not None
    assert first.outcome.head is not None
    evidence = json.loads(forge.read_file(first.outcome.head, "engines/tiny-qwen3/evidence.json") or b"{}")
    assert evidence["input_hash"] == first.input_hash
    assert all(report["verdict"] == "passed" for report in evidence["gates"])
    assert all(
        report["reproduce"].startswith(f"metainfer gate {report['gate']} engines/tiny-qwen3")
        for report in evidence["gates"]
    )


@pytest.mark.slow
def test_knowledge_travels_in_its_own_commit_and_serves_the_next_engine(scratch: Path, tmp_path: Path) -> None:
    from metainfer.forge.setup import open_forge

    result = run_here(scratch, "tiny-qwen2", proposals=[a_failure_mode(tmp_path)])
    assert [report.verdict for report in result.gates] == ["passed"] * 5
    assert result.outcome is not None
    assert result.outcome.number is not None
    forge = open_forge(scratch / "work")
    pull = forge.get(result.outcome.number)
    assert pull.has_knowledge
    assert "lost-on-abort" in pull.body
    forge.approve(pull.number, Identity("Passer-by", "passer-by@example.org"))
    with pytest.raises(MergeRefusedError, match="ckb/"):
        forge.merge(pull.number, REVIEWER)
    forge.approve(pull.number, REVIEWER)
    forge.merge(pull.number, REVIEWER)
    merged = forge.read_file("main", "ckb/general/paged-kv-cache/contract.yaml") or b""
    assert b"lost-on-abort" in merged
    after = run_here(scratch, "tiny-qwen2", dry_run=True)
    assert after.status == "planned"
    assert after.input_hash != result.input_hash
