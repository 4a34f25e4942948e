"""What is said of specs before anything is made, and of a branch at night."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metainfer.ci import nightly
from metainfer.ci.affected import affected_engines
from metainfer.ci.estimate import estimate
from metainfer.ci.posting import post_comment
from metainfer.ci.repository import Checkout
from metainfer.ci.spec_report import Examiner, SpecFinding, SpecReport, markdown
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError
from metainfer.progress import Silent
from metainfer.spec.models import Generation
from tests.ci.repositories import ROOT, Scene, commit, git, make_repository


@pytest.fixture
def work(original: Scene, tmp_path: Path) -> Path:
    folder = make_repository(tmp_path / "work")
    shutil.copytree(original.bundle / "engine", folder / "engines/tiny-qwen3")
    commit(folder, "Merge the engine")
    return folder


def examine(work: Path, path: str = "specs/tiny-qwen3.yaml", **changes: str) -> SpecFinding:
    """The finding for a spec in which texts were replaced."""
    file = work / path
    text = file.read_text()
    for old, new in changes.items():
        text = text.replace(SPELLED[old], new)
    file.write_text(text)
    knowledge = KnowledgeBase.load(work / "ckb")
    return Examiner(work, knowledge, work.parent / "cache", Silent()).examine(path)


SPELLED = {
    "length": "max_model_len: 512",
    "platform": "platform: cpu-x86-avx2",
    "seed": "seed: 7",
    "end": "stop, seed]",
}


def test_a_good_spec_is_valid_covered_and_feasible_for_nothing(work: Path) -> None:
    found = examine(work)
    assert found.verdict == "ok"
    assert found.gaps == ()
    assert found.fits is not None
    assert found.fits.fits
    assert found.cost is not None
    assert (found.cost.usd, found.cost.answers) == (0.0, 0)
    text = markdown(SpecReport([found]))
    assert text.splitlines()[2] == "**1 spec(s) can be generated.**"
    assert "nothing: the specializer folds verified exemplars, offline" in text


def test_no_weights_are_made_only_to_look_at_a_spec(work: Path) -> None:
    examine(work)
    assert not list((work.parent / "cache").rglob("*.safetensors"))


def test_a_mistake_is_told_at_its_line(work: Path) -> None:
    found = examine(work, seed="sed: 7")
    assert found.verdict == "invalid"
    assert {(p.file, p.line > 0) for p in found.problems} == {("specs/tiny-qwen3.yaml", True)}
    assert any("did you mean seed?" in p.message for p in found.problems)


def test_what_no_model_can_do_is_refused_with_the_arithmetic(work: Path) -> None:
    found = examine(work, length="max_model_len: 100000")
    assert found.verdict == "refused"
    assert "the model's positions end at 1024" in found.problems[0].message
    assert "**NOT READY: 1 of 1 spec(s)" in markdown(SpecReport([found]))


def test_a_platform_that_is_not_served_is_refused_by_name(work: Path) -> None:
    found = examine(work, platform="platform: cuda-sm90")
    assert found.verdict == "refused"
    assert "'cuda-sm90' is not served yet" in found.problems[0].message


def test_a_model_that_would_have_to_be_fetched_is_left_open(work: Path) -> None:
    shutil.copyfile(ROOT / "specs/qwen2.5-coder-0.5b-cpu.yaml", work / "specs/qwen2.5-coder-0.5b-cpu.yaml")
    found = examine(work, "specs/qwen2.5-coder-0.5b-cpu.yaml")
    assert found.verdict == "unknown"
    assert "known once its model is fetched" in markdown(SpecReport([found]))


def test_knowledge_that_is_missing_is_told_unit_by_unit(work: Path) -> None:
    shutil.rmtree(work / "ckb/family/rope")
    for contract in (work / "ckb").rglob("contract.yaml"):
        lines = [line for line in contract.read_text().splitlines() if "family/rope" not in line]
        contract.write_text("\n".join(lines) + "\n")
    found = examine(work)
    assert found.verdict == "refused"
    assert any("not covered: " in problem.message for problem in found.problems)


def test_the_worst_case_of_a_model_is_its_budget_and_its_answers() -> None:
    asked = Generation(backend="agents", model="gpt-4.1", contracts=["family/rope", "family/rmsnorm"], rounds=2,
                       samples=3, budget_usd=5.0)  # fmt: skip
    found = estimate(asked)
    assert (found.usd, found.answers) == (5.0, 2 * (1 + 2 + 3))
    unknown = estimate(asked.model_copy(update={"model": "nobody-knows"}))
    assert "no list has this model's price" in unknown.words


def test_text_of_a_spec_does_nothing_in_the_comment(work: Path) -> None:
    found = examine(work, seed='"@everyone <img src=x> [a](http://x.example)\\n::error::y": 7')
    text = markdown(SpecReport([found]))
    assert "<img" not in text
    assert "@everyone" not in text
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())


def test_the_report_says_which_engines_a_merge_would_make(work: Path, tmp_path: Path) -> None:
    base = git(work, "rev-parse", "HEAD")
    (work / "specs/tiny-qwen3.yaml").open("a").write("# words\n")
    head = commit(work, "Words")
    change = affected_engines(Checkout(work), base, head, tmp_path)
    text = markdown(SpecReport([examine(work)], change))
    assert "Merging this makes anew:" in text
    assert "`tiny-qwen3`: specs/tiny-qwen3.yaml changed" in text


def test_the_command_annotates_writes_the_report_and_is_red(work: Path, tmp_path: Path) -> None:
    base = git(work, "rev-parse", "HEAD")
    file = work / "specs/tiny-qwen3.yaml"
    file.write_text(file.read_text().replace("seed: 7", "sed: 7"))
    commit(work, "A mistake")
    out = tmp_path / "report.md"
    command = [sys.executable, "-m", "metainfer", "ci", "spec-report", "--base", base, "--out", str(out)]
    environment = {**os.environ, "GITHUB_ACTIONS": "true", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    annotations = [line for line in done.stdout.splitlines() if line.startswith("::")]
    assert annotations
    assert all(line.startswith("::error file=specs/tiny-qwen3.yaml,line=") for line in annotations)
    assert "NOT READY" in out.read_text()


def test_a_comment_is_written_once_and_again_only_when_it_changed(scene: Scene, tmp_path: Path) -> None:
    from tests.forge.engines import request

    scene.forge.publish(request(scene.forge))
    file = tmp_path / "report.md"
    for text, count in (("one", 1), ("one", 1), ("two", 2)):
        file.write_text(text)
        post_comment(scene.forge, 1, file, "spec-report")
        assert len(scene.forge.get(1).comments) == count
    file.write_bytes(b"x" * (1 << 20))
    with pytest.raises(InputError):
        post_comment(scene.forge, 1, file, "spec-report")


# At night


def look(work: Path, tmp_path: Path) -> nightly.NightReport:
    return nightly.look_around(Checkout(work), "HEAD", tmp_path / "cache", [])


def test_engines_as_their_inputs_make_them_are_nothing_to_do(work: Path, tmp_path: Path) -> None:
    (work / "specs/tiny-qwen2.yaml").unlink()
    commit(work, "One spec")
    report = look(work, tmp_path)
    assert report.good, nightly.markdown(report)
    assert "`tiny-qwen3`: as its inputs make it" in nightly.markdown(report)


def test_an_edited_engine_is_found(work: Path, tmp_path: Path) -> None:
    (work / "engines/tiny-qwen3/tiny_qwen3/model.py").open("a").write("# mine\n")
    commit(work, "By hand")
    [drift] = [one for one in look(work, tmp_path).drifts if one.engine == "tiny-qwen3"]
    assert drift.altered == ["tiny_qwen3/model.py: differs from what the generator makes"]


def test_an_edited_engine_is_found_though_knowledge_moved_on(work: Path, tmp_path: Path) -> None:
    (work / "engines/tiny-qwen3/tiny_qwen3/model.py").open("a").write("# mine\n")
    (work / "ckb/family/rope/check.py").open("a").write("# words\n")
    commit(work, "Both")
    [drift] = [one for one in look(work, tmp_path).drifts if one.engine == "tiny-qwen3"]
    assert drift.altered == ["tiny_qwen3/model.py: changed after generation"]
    assert drift.behind == ["the engine was made of other knowledge: family/rope"]


def test_a_spec_whose_engine_was_never_made_is_behind(work: Path, tmp_path: Path) -> None:
    report = look(work, tmp_path)
    assert not report.good
    assert "`tiny-qwen2`: behind: there is no engine for it yet" in nightly.markdown(report)
