"""A whole run with a model in it: from the spec to a pull request that says who wrote what."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metainfer.agents.transcript import read_transcript
from metainfer.errors import InputError
from metainfer.forge.protocol import Forge, Identity, MergeRefusedError, PullRequest
from metainfer.forge.setup import open_forge
from metainfer.generate.regenerate import differences, regenerate
from metainfer.pipeline.replay import replay
from metainfer.pipeline.run import RunRequest, RunResult, run
from metainfer.pipeline.submitted import SubmissionError
from metainfer.progress import Silent
from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS
from tests.agents.repository import ROOT, make_repository, run_with
from tests.agents.roles_script import MLP, NORM, ROPE, SCRIPT, SWIGLU_LINE
from tests.agents.scripted_endpoint import answers, fails

REVIEWER = Identity("Reviewer", "reviewer@example.org")
GENERATION = {
    "backend": "agents",
    "model": "scripted",
    "reference": "none",
    "rounds": 1,
    "contracts": [NORM, MLP, ROPE],
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository") / "work")


@pytest.fixture(scope="module")
def first(work: Path) -> RunResult:
    return run_with(work, answers(SCRIPT), GENERATION)


def test_the_engine_passes_every_gate_and_is_proposed(first: RunResult) -> None:
    assert [(report.gate, report.verdict) for report in first.gates] == [
        (gate, "passed") for gate in ("spec", "static", "unit", "numerics", "serving")
    ]
    assert first.status == "published"


def test_each_units_origin_is_true_in_the_manifest(first: RunResult) -> None:
    assert first.manifest is not None
    origins = {unit.name: (unit.backend, unit.origin) for unit in first.manifest.units}
    assert origins["RMSNorm"] == ("agents", "units/family.rmsnorm.py")
    assert origins["SwiGLU"] == ("agents", "units/family.swiglu-mlp.py")
    assert origins["apply_rope"] == ("specializer", "ckb/family/rope/exemplars/rope.py")
    assert origins["Linear"][0] == "specializer"
    assert first.manifest.agent is not None
    assert first.manifest.agent.fell_back == ("family/rope",)
    assert first.manifest.agent.settings["model"] == "scripted"


def test_the_pull_request_says_who_wrote_what_and_what_fell_back(work: Path, first: RunResult) -> None:
    forge: Forge = open_forge(work)
    assert first.outcome is not None
    assert first.outcome.number is not None
    body = forge.get(first.outcome.number).body
    assert "2 unit(s) written by a language model" in body
    assert "`scripted`, which saw no code of ours" in body
    assert "it could not write `family/rope`: their exemplars stand there" in body


def test_the_engine_is_made_again_from_what_travels_with_it(work: Path, first: RunResult) -> None:
    assert first.run_folder is not None
    engine = first.run_folder / "tiny-qwen3"
    assert differences(engine, regenerate(engine, work / "ckb")) == []
    unit = engine / "units" / "family.rmsnorm.py"
    written = unit.read_text()
    unit.write_text(written + "# by hand\n")
    changed = differences(engine, regenerate(engine, work / "ckb"))
    unit.write_text(written)
    assert "manifest.json: differs from what the generator makes" in changed


def test_the_transcript_alone_makes_the_engine_again(work: Path, first: RunResult) -> None:
    assert first.run_folder is not None
    assert replay(first.run_folder, "tiny-qwen3", work / "ckb") == []
    transcript = first.run_folder / "transcript.jsonl"
    said = transcript.read_text()
    transcript.write_text(said.replace("torch.rsqrt(power", "torch.rsqrt(2 * power"))
    complaints = replay(first.run_folder, "tiny-qwen3", work / "ckb")
    transcript.write_text(said)
    assert "units/family.rmsnorm.py: differs from what the generator makes" in complaints


def cut(said: bytes) -> bytes:
    return said[: len(said) // 2]


def nested(said: bytes) -> bytes:
    return b"[" * 100_000


@pytest.mark.parametrize("name", ["transcript.jsonl", "outcomes.json", "tiny-qwen3/manifest.json"])
@pytest.mark.parametrize("damage", [cut, nested, bytes.swapcase, None])
def test_a_damaged_record_is_refused_by_its_name(
    work: Path, first: RunResult, tmp_path: Path, name: str, damage: Callable[[bytes], bytes] | None
) -> None:
    assert first.run_folder is not None
    run = shutil.copytree(first.run_folder, tmp_path / "run")
    said = (run / name).read_bytes()
    (run / name).unlink()
    if damage:
        (run / name).write_bytes(damage(said))
    with pytest.raises(InputError, match=name):
        replay(run, "tiny-qwen3", work / "ckb")


def test_the_same_inputs_again_ask_nobody(work: Path, first: RunResult) -> None:
    assert run_with(work, fails(500), GENERATION).status == "unchanged"


def test_what_a_model_wrote_never_runs_without_the_sandbox(work: Path) -> None:
    with pytest.raises(InputError, match="sandbox or not at all"):
        run_with(work, fails(500), GENERATION, allow_unsandboxed=True)


@pytest.fixture(scope="module")
def pull(work: Path, first: RunResult) -> PullRequest:
    assert first.outcome is not None
    assert first.outcome.number is not None
    return open_forge(work).get(first.outcome.number)


def kept(result: RunResult, name: str) -> Any:
    assert result.run_folder is not None
    return json.loads((result.run_folder / name).read_text())


def test_every_role_spoke_in_its_turn(first: RunResult) -> None:
    assert first.run_folder is not None
    turns = [turn.purpose for turn in read_transcript(first.run_folder / "transcript.jsonl")]
    assert turns.pop(0).role == "probe"
    calls = [(purpose.role, purpose.subject, purpose.round) for purpose in turns]
    assert calls[0] == ("planner", "tiny-qwen3", 0)
    assert calls[-1] == ("consolidator", NORM, 0)
    assert sorted(calls[1:-1]) == sorted([
        ("implementer", NORM, 0),
        ("implementer", NORM, 1),
        ("implementer", MLP, 0),
        ("implementer", MLP, 1),
        ("implementer", ROPE, 0),
        ("reviewer", NORM, 0),
        ("reviewer", MLP, 0),
    ])  # fmt: skip


def test_the_plan_is_kept_clipped_and_leaves_nothing_that_the_spec_names(first: RunResult) -> None:
    given = kept(first, "plan.json")
    assert given["planned"]
    assert [(step["contract"], step["rounds"], step["leave"]) for step in given["steps"]] == [
        (MLP, 1, False), (NORM, 1, False), (ROPE, 0, False),
    ]  # fmt: skip
    assert first.manifest is not None
    assert {unit.contract for unit in first.manifest.units if unit.backend == "agents"} == {NORM, MLP}


def test_the_open_objection_is_in_the_manifest_and_in_the_pull_request_as_text(
    first: RunResult, pull: PullRequest
) -> None:
    assert first.manifest is not None
    assert first.manifest.agent is not None
    [open_] = first.manifest.agent.objections
    assert (open_.contract, open_.clause, open_.line) == (MLP, "S1", SWIGLU_LINE)
    assert "### Objections of the reviewer" in pull.body
    row = next(line for line in pull.body.splitlines() if line.startswith(f"| {MLP} | {SWIGLU_LINE} | S1: "))
    assert "overflow" in row
    assert "@maintainers" not in row
    assert "<img" not in row
    reviews = {outcome["contract"]: outcome["review"] for outcome in kept(first, "outcomes.json")}
    assert (reviews[NORM]["objections"], reviews[NORM]["dropped"]) == ([], 1)


def test_what_was_learnt_is_a_commit_of_its_own_that_changes_no_check(work: Path, pull: PullRequest) -> None:
    forge = open_forge(work)
    log = ["git", "--git-dir", forge.address(), "log", "--format=%s", "--name-only", "-1", pull.head]
    subject, *paths = subprocess.run(log, capture_output=True, text=True, check=True).stdout.split("\n")
    assert subject == "Propose knowledge found while generating tiny-qwen3"
    assert [path for path in paths if path] == [f"ckb/{NORM}/contract.yaml"]
    text = (forge.read_file(pull.head, f"ckb/{NORM}/contract.yaml") or b"").decode()
    assert "caught_by: check_matches_float64" in text.rpartition("reciprocal-root-taken-bare")[2]
    assert "model scripted" in text
    assert "WEAKEN" not in pull.body
    assert "@owner" not in pull.body
    assert "a new failure mode reciprocal-root-taken-bare" in pull.body
    assert "attempts 2, attempts" in pull.body.replace("\\", "")


def test_what_was_dropped_is_kept_with_the_reason(first: RunResult) -> None:
    lessons = kept(first, "lessons.json")
    assert len(lessons["proposed"]) == 1
    assert [dropped["why"] for dropped in lessons["dropped"]] == [
        "it speaks of checks or tolerances, which no failure mode changes"
    ]


def test_a_merge_needs_an_owner_of_the_knowledge_base(work: Path, pull: PullRequest) -> None:
    forge = open_forge(work)
    forge.approve(pull.number, Identity("Passer-by", "passer-by@example.org"))
    with pytest.raises(MergeRefusedError, match="ckb/"):
        forge.merge(pull.number, REVIEWER)


def show(work: Path, first: RunResult, *options: str) -> str:
    assert first.run_folder is not None
    command = [sys.executable, "-m", "metainfer", "runs", "show", first.run_folder.name, *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_run_shows_what_each_role_cost_and_when(work: Path, first: RunResult) -> None:
    data = json.loads(show(work, first, "--json"))
    roles = {role["role"]: role for role in data["model"]["roles"]}
    calls = {name: role["calls"] for name, role in roles.items()}
    assert calls == {"probe": 1, "planner": 1, "implementer": 5, "reviewer": 2, "consolidator": 1}
    assert all(role["tokens"] > 0 for role in roles.values())
    begin, *others = data["model"]["calls"]
    assert (begin["role"], begin["began_s"]) == ("probe", 0.0)
    assert all(call["began_s"] >= 0.0 for call in others)
    text = show(work, first)
    assert "  reviewer           2     0      0" in text
    assert f"implementer {NORM} round 1 sample 0: " in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backend": "agents", "model": None}, "backend agents needs a model"),
        ({"backend": "specializer", "optimise": True}, "reference none keeps those back"),
        ({"rounds": 99}, "rounds: .* less than or equal to 20"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_in_words(work: Path, changes: dict[str, Any], words: str) -> None:
    request = RunRequest(
        spec_path=work / "specs" / "tiny-qwen3.yaml",
        repo_root=work,
        state=work / ".metainfer",
        cache=work.parent / "cache",
        generation=GENERATION | changes,
    )
    with pytest.raises(InputError, match=words):
        run(request, open_forge(work), Silent())


@pytest.mark.slow
def test_a_unit_from_elsewhere_takes_the_same_path(work: Path, tmp_path: Path) -> None:
    file = tmp_path / "norm.py"
    file.write_text(RMSNORM, encoding="utf-8")
    result = submit(work, {"RMSNorm": file})
    assert result.status == "published"
    assert result.manifest is not None
    origins = {unit.name: unit.backend for unit in result.manifest.units}
    assert (origins["RMSNorm"], origins["SwiGLU"]) == ("submitted", "specializer")
    assert result.manifest.agent is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(RMSNORM_WITHOUT_EPS, "check_matches_float64", id="subtly wrong", marks=pytest.mark.slow),
        pytest.param("def RMSNorm(): pass", "must be a class", id="another interface"),
        pytest.param(RMSNORM + "\nimport os\n\n\nos.system('true')\n", "os.system", id="forbidden"),
    ],
)
def test_a_unit_from_elsewhere_that_does_not_hold_is_told_why(
    work: Path, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "norm.py"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SubmissionError, match=words):
        submit(work, {"RMSNorm": file})


def test_a_unit_that_nobody_knows_is_refused_by_name(work: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no unit is called RmsNorm; there are .*RMSNorm"):
        submit(work, {"RmsNorm": tmp_path / "x.py"})


def submit(work: Path, files: dict[str, Path]) -> RunResult:
    request = RunRequest(
        spec_path=work / "specs" / "tiny-qwen2.yaml",
        repo_root=work,
        state=work / ".metainfer",
        cache=work.parent / "cache",
        bench=False,
        submitted=files,
    )
    return run(request, open_forge(work), Silent())
