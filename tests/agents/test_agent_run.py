"""A whole run with a model in it: from the spec to a pull request that says who wrote what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metainfer.errors import InputError
from metainfer.forge.protocol import Forge
from metainfer.forge.setup import open_forge
from metainfer.generate.regenerate import differences, regenerate
from metainfer.pipeline.replay import replay
from metainfer.pipeline.run import RunRequest, RunResult, run
from metainfer.pipeline.submitted import SubmissionError
from metainfer.progress import Silent
from tests.agents.handwritten import RMSNORM, RMSNORM_WITHOUT_EPS, SWIGLU, fenced
from tests.agents.repository import make_repository, run_with
from tests.agents.scripted_endpoint import answers, fails

GENERATION = {
    "backend": "agents",
    "model": "scripted",
    "reference": "none",
    "rounds": 0,
    "contracts": ["family/rmsnorm", "family/swiglu-mlp", "family/rope"],
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository") / "work")


def norm_and_mlp_only(body: dict[str, Any]) -> str:
    task = body["messages"][1]["content"]
    if "Write RMSNorm" in task:
        return fenced(RMSNORM)
    return fenced(SWIGLU) if "Write SwiGLU" in task else "I cannot do that."


@pytest.fixture(scope="module")
def first(work: Path) -> RunResult:
    return run_with(work, answers(norm_and_mlp_only), GENERATION)


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


def test_the_same_inputs_again_ask_nobody(work: Path, first: RunResult) -> None:
    assert run_with(work, fails(500), GENERATION).status == "unchanged"


def test_what_a_model_wrote_never_runs_without_the_sandbox(work: Path) -> None:
    with pytest.raises(InputError, match="sandbox or not at all"):
        run_with(work, fails(500), GENERATION, allow_unsandboxed=True)


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
        (RMSNORM_WITHOUT_EPS, "check_matches_float64"),
        ("def RMSNorm(): pass", "must be a class"),
        (RMSNORM + "\nimport os\n\n\nos.system('true')\n", "os.system"),
    ],
    ids=["subtly wrong", "another interface", "forbidden"],
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
