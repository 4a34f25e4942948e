"""`metainfer pr checkout`: the engine of a pull request as a folder, before anybody merges it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from metainfer.cli import app
from metainfer.errors import InputError, RefusedError
from metainfer.forge.local import LocalForge
from metainfer.forge.paths import collect_files
from metainfer.forge.protocol import PublishRequest
from metainfer.pipeline.checkout import checkout_engine, checkout_pull
from tests.forge.engines import ALICE, ENGINE, FOLDER, engine_files, request

ROOT = Path(__file__).parents[2]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty work tree, which uses the test's forge."""
    folder = tmp_path / "work"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.setenv("METAINFER_FORGE", str(tmp_path / "forge.git"))
    monkeypatch.chdir(folder)
    return folder


def checkout(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pr", "checkout", *arguments])


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_writes_the_engine_and_prints_the_folder(forge: LocalForge, work: Path) -> None:
    proposal = request(forge)
    forge.publish(proposal)
    folder = Path(checkout("1").stdout.strip())
    assert folder == work / f".metainfer/pulls/1/{ENGINE}"
    assert {FOLDER + path: data for path, data in content(folder).items()} == proposal.engine_files


def test_an_engine_that_waits_in_a_pull_request_is_named_with_the_way_to_it(forge: LocalForge, work: Path) -> None:
    forge.publish(request(forge))
    for command, place in (("verify", f"engines/{ENGINE}"), ("explain", f"{FOLDER}tiny_cpu/__main__.py:1")):
        result = CliRunner().invoke(app, [command, place])
        assert isinstance(result.exception, InputError)
        assert "metainfer pr checkout" in str(result.exception)
    with pytest.raises(InputError, match="waits in pull request #1: `metainfer pr checkout 1`"):
        checkout_engine(work, work / ".metainfer", ENGINE)
    with pytest.raises(InputError, match="`metainfer run` makes it"):
        checkout_engine(work, work / ".metainfer", "another")


def test_verifying_the_folder_is_verifying_what_was_proposed(forge: LocalForge, work: Path) -> None:
    proposed = sorted((ROOT / "engines").glob("*/manifest.json"))[0].parent
    files = collect_files(proposed, f"engines/{proposed.name}/")
    forge.publish(PublishRequest(proposed.name, "sha256:aa", forge.base_sha(), files, "An engine", "Body"))
    folder = checkout("1").stdout.strip()
    verdicts = [
        CliRunner().invoke(app, ["verify", str(engine), "--ckb", str(ROOT / "ckb")]) for engine in (proposed, folder)
    ]
    assert verdicts[1].exit_code == verdicts[0].exit_code
    assert verdicts[1].output == verdicts[0].output.replace(str(proposed), folder)
    assert verdicts[1].output.startswith(folder)


def test_a_new_head_replaces_the_old_one_whole(forge: LocalForge, work: Path) -> None:
    forge.publish(request(forge, "sha256:aa", more={"tiny_cpu/gone.py": b"pass\n"}))
    folder = Path(checkout("1").stdout.strip())
    (folder / "left_over.py").touch()
    forge.publish(request(forge, "sha256:bb"))
    assert checkout("1").exit_code == 0
    assert content(folder) == engine_files("sha256:bb", "print('sha256:bb')\n")
    assert [path.name for path in folder.parent.iterdir()] == [ENGINE]


def test_another_folder_can_be_named_and_written_again(forge: LocalForge, work: Path) -> None:
    forge.publish(request(forge))
    for _ in range(2):
        assert checkout("1", "--out", "candidate").stdout.strip() == "candidate"
    assert content(work / "candidate") == engine_files(code="print('sha256:aa')\n")


def test_a_folder_with_anything_else_in_it_is_left_alone(forge: LocalForge, work: Path) -> None:
    forge.publish(request(forge))
    (work / "notes").mkdir()
    (work / "notes/mine.txt").write_text("x")
    (work / "file").touch()
    assert checkout("1", "--out", "edited").exit_code == 0
    (work / "edited/tiny_cpu/model.py").write_text("mine\n")
    before = content(work)
    for out in ("notes", "file", "edited"):
        error = checkout("1", "--out", out).exception
        assert isinstance(error, InputError)
        assert out in str(error)
        assert "--out" in str(error)
    assert content(work) == before


def test_a_merged_or_closed_pull_request_can_still_be_read(forge: LocalForge, work: Path) -> None:
    forge.publish(request(forge))
    forge.close(1, ALICE)
    assert checkout("1").exit_code == 0
    assert checkout("2").exception is not None


def test_nothing_is_written_outside_of_the_folder(forge: LocalForge, work: Path) -> None:
    forge.publish(request(forge))

    class Hostile(LocalForge):
        def read_tree(self, ref: str, folder: str) -> dict[str, bytes]:
            return {**super().read_tree(ref, folder), f"{FOLDER}../../../escaped.py": b"x"}

    hostile = Hostile(forge.repo.git_dir)
    with pytest.raises(RefusedError, match=r"escaped\.py"):
        checkout_pull(hostile, hostile.get(1), work / "out" / ENGINE)
    assert content(work) == {}
