"""Which engines a change affects, and as which jobs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from metainfer.ci import plan_report
from metainfer.ci.affected import Affected, Asked, Change, affected_engines, require_only_specs
from metainfer.ci.matrix import MAX_JOBS, chunks, parse_labels, runner_labels
from metainfer.ci.repository import NO_COMMIT, Checkout
from metainfer.errors import InputError
from metainfer.files import pretty_json
from tests.ci.repositories import ROOT, Scene, commit, git, make_repository


@pytest.fixture
def work(original: Scene, tmp_path: Path) -> Path:
    """A repository whose engine tiny-qwen3 is merged, and tiny-qwen2 is not made yet."""
    folder = make_repository(tmp_path / "work")
    shutil.copytree(original.bundle / "engine", folder / "engines/tiny-qwen3")
    commit(folder, "Merge the engine")
    return folder


def planned(work: Path, cache: Path, asked: Asked | None = None, base: str | None = None) -> Change:
    head = git(work, "rev-parse", "HEAD")
    return affected_engines(Checkout(work), base or git(work, "rev-parse", "HEAD~1"), head, cache, asked)


def reasons(change: Change) -> dict[str, list[str]]:
    return {one.engine: [reason.words for reason in one.reasons] for one in change.affected}


def append(work: Path, path: str, text: str) -> None:
    with (work / path).open("a") as stream:
        stream.write(text)
    commit(work, f"Change {path}")


def test_a_change_of_neither_specs_nor_knowledge_affects_nothing(work: Path, tmp_path: Path) -> None:
    append(work, "README.md", "words\n")
    change = planned(work, tmp_path)
    assert change.affected == ()
    assert change.unaffected == ("tiny-qwen2", "tiny-qwen3")
    assert chunks(change) == []


def test_a_changed_spec_affects_its_own_engine_alone(work: Path, tmp_path: Path) -> None:
    append(work, "specs/tiny-qwen3.yaml", "# words\n")
    assert reasons(planned(work, tmp_path)) == {"tiny-qwen3": ["specs/tiny-qwen3.yaml changed"]}


def test_a_changed_check_affects_the_engines_that_route_it_and_names_the_file(work: Path, tmp_path: Path) -> None:
    append(work, "ckb/family/rope/check.py", "# words\n")
    found = reasons(planned(work, tmp_path))
    assert found["tiny-qwen3"] == ["family/rope: check.py changed"]
    assert "known once it is fetched" in found["tiny-qwen2"][0]  # no engine and no model here says what it routes


def test_knowledge_that_a_deployment_does_not_route_leaves_its_engine_alone(work: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(work / "ckb/family/rope", work / "ckb/family/rope-other")
    text = (folder / "contract.yaml").read_text().replace("id: family/rope", "id: family/rope-other")
    narrow = 'applies_when: architecture == "qwen2"'
    lines = [narrow if line.startswith("applies_when:") else line for line in text.splitlines()]
    (folder / "contract.yaml").write_text("\n".join(lines) + "\n")
    commit(work, "Knowledge for another model")
    assert "tiny-qwen3" not in reasons(planned(work, tmp_path))


def test_another_generator_affects_every_engine_that_it_did_not_make(work: Path, tmp_path: Path) -> None:
    path = work / "engines/tiny-qwen3/manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["generator"] = {"version": "0", "tools": {**manifest["generator"]["tools"], "ruff": "0.1"}}
    path.write_bytes(pretty_json(manifest))
    commit(work, "As an older generator made it")
    [words] = reasons(planned(work, tmp_path))["tiny-qwen3"]
    assert words.startswith("generator 0 → 1, ruff 0.1 → ")


def test_a_deleted_spec_is_told_and_makes_no_job(work: Path, tmp_path: Path) -> None:
    (work / "specs/tiny-qwen3.yaml").unlink()
    commit(work, "Not wanted any more")
    change = planned(work, tmp_path)
    assert change.deleted == ("tiny-qwen3",)
    assert chunks(change) == []
    assert "its spec was deleted" in plan_report.markdown(change)


def test_a_broken_spec_is_told_at_its_line_and_stops_no_other(work: Path, tmp_path: Path) -> None:
    append(work, "specs/tiny-qwen3.yaml", "nonsense: 1\n")
    append(work, "specs/tiny-qwen2.yaml", "# words\n")
    change = planned(work, tmp_path, base=git(work, "rev-parse", "HEAD~2"))
    assert [one.engine for one in change.affected] == ["tiny-qwen2"]
    [remark] = plan_report.remarks(change)
    assert (remark.level, remark.file) == ("error", "specs/tiny-qwen3.yaml")
    assert remark.line == (work / "specs/tiny-qwen3.yaml").read_text().count("\n")
    assert "there is no such key" in remark.message


def test_from_the_beginning_every_spec_is_new(work: Path, tmp_path: Path) -> None:
    assert set(reasons(planned(work, tmp_path, base=NO_COMMIT))) == {"tiny-qwen2", "tiny-qwen3"}


def test_what_is_asked_for_is_planned_whatever_changed(work: Path, tmp_path: Path) -> None:
    append(work, "specs/tiny-qwen2.yaml", "# words\n")
    assert reasons(planned(work, tmp_path, Asked(["tiny-qwen3"]))) == {"tiny-qwen3": ["asked for"]}
    assert set(reasons(planned(work, tmp_path, Asked(every=True)))) == {"tiny-qwen2", "tiny-qwen3"}
    with pytest.raises(InputError, match="'other' is no spec"):
        planned(work, tmp_path, Asked(["other"]))


def test_an_engine_that_an_earlier_red_run_left_behind_is_found_when_asked(work: Path, tmp_path: Path) -> None:
    append(work, "ckb/family/rope/check.py", "# words\n")
    append(work, "README.md", "words\n")
    assert planned(work, tmp_path).affected == ()
    found = reasons(planned(work, tmp_path, Asked(behind=True)))
    assert found["tiny-qwen3"] == ["the engine was made of other knowledge: family/rope"]
    assert found["tiny-qwen2"] == ["there is no engine for it yet"]


def test_a_commit_that_was_not_fetched_is_said_to_be_missing(work: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fetch-depth"):
        planned(work, tmp_path, base="1" * 40)


def test_a_change_beside_specs_makes_no_stacked_engine(work: Path) -> None:
    checkout, base = Checkout(work), git(work, "rev-parse", "HEAD")
    append(work, "specs/tiny-qwen3.yaml", "# words\n")
    require_only_specs(checkout, base, "HEAD")
    append(work, "ckb/family/rope/check.py", "# words\n")
    with pytest.raises(InputError, match=r"ckb/family/rope/check\.py"):
        require_only_specs(checkout, base, "HEAD")


def test_platforms_find_their_runners() -> None:
    assert runner_labels("cpu-x86-avx2") == ["ubuntu-24.04"]
    assert runner_labels("cpu-x86-avx2", ["self-hosted", "avx2"]) == ["self-hosted", "avx2"]
    assert runner_labels("hip-gfx942") == ["self-hosted", "gpu", "gfx942"]
    assert parse_labels("ubuntu-24.04") == parse_labels('["ubuntu-24.04"]') == ["ubuntu-24.04"]
    assert parse_labels("self-hosted, linux") == ["self-hosted", "linux"]
    for wrong in ("", "[]", "[1]", "[", "a,,b"):
        with pytest.raises(InputError):
            parse_labels(wrong)


@pytest.mark.parametrize(
    ("engines", "sizes"), [(0, []), (1, [1]), (255, [255]), (256, [255, 1]), (600, [255, 255, 90])]
)
def test_no_matrix_is_longer_than_github_allows(engines: int, sizes: list[int]) -> None:
    many = tuple(Affected(f"e{n}", f"specs/e{n}.yaml", "cpu-x86-avx2", ()) for n in range(engines))
    found = chunks(Change("a", "b", many))
    assert [len(chunk) for chunk in found] == sizes
    assert max(sizes, default=0) <= MAX_JOBS
    assert sum(len(chunk) for chunk in found) == len({job["engine"] for chunk in found for job in chunk})


def test_the_tree_has_specs_that_the_plan_understands(tmp_path: Path) -> None:
    head = git(ROOT, "rev-parse", "HEAD")
    change = affected_engines(Checkout(ROOT), head, head, tmp_path, Asked(every=True))
    assert change.broken == ()
    assert {one.platform for one in change.affected} == {"cpu-x86-avx2"}
