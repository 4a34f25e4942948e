"""What a release offers: built the same each time, without running anything of the engine, and checked when read."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from metainfer.errors import InputError, RefusedError
from metainfer.forge.local import LocalForge
from metainfer.release.bundle import DIGESTS, build_bundle, read_bundle, require_bundle_of
from metainfer.release.tag import plan_release, release, release_notes
from metainfer.release.versions import Version
from tests.forge.conftest import forge, source_repo, template
from tests.forge.engines import ALICE, ENGINE, FOLDER, commit_on, engine_files

__all__ = ["forge", "source_repo", "template"]
PROJECT = """[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = "metainfer-engine-tiny-cpu"
version = "0.0.0+aa"
requires-python = ">=3.11"

[tool.hatch.build.targets.wheel]
packages = ["tiny_cpu"]
"""


def put(
    forge: LocalForge, project: str = PROJECT, code: str = "print('hello')\n", others: Mapping[str, bytes] | None = None
) -> str:
    more = {
        **(others or {}),
        "pyproject.toml": project.encode(),
        "tiny_cpu/__init__.py": b"",
        "tiny_cpu/__main__.py": code.encode(),
    }
    files = engine_files(code=code, more=more)
    return commit_on(forge, "main", {FOLDER + path: data for path, data in files.items()})


def test_a_bundle_is_the_same_each_time_and_its_wheel_installs_and_runs(forge: LocalForge, tmp_path: Path) -> None:
    commit = put(forge)
    one = build_bundle(forge, ENGINE, commit, Version(1, 2, 3), tmp_path / "one")
    two = build_bundle(forge, ENGINE, commit, Version(1, 2, 3), tmp_path / "two")
    assert one.digests() == two.digests()
    assert one.files == two.files
    wheel = next(tmp_path.glob("one/*-1.2.3-py3-none-any.whl"))
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-m", "tiny_cpu"], env={"PYTHONPATH": str(target)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "hello\n"
    checked = subprocess.run(["sha256sum", "-c", DIGESTS], cwd=one.folder, capture_output=True, text=True, check=False)
    assert checked.returncode == 0
    assert checked.stdout.count(": OK") == len(one.files) - 1


def test_a_bundle_is_whole_in_a_folder_named_from_where_one_stands(
    forge: LocalForge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 makes relative temporary folders of relative ones; the build then wrote elsewhere, unnoticed."""
    monkeypatch.chdir(tmp_path)
    made = build_bundle(forge, ENGINE, put(forge), Version(0, 1, 0), Path("dist"))
    assert made.files[-1] == DIGESTS
    assert sorted(Path(name).suffix for name in made.files[:-1]) == [".gz", ".json", ".json", ".whl"]
    assert sorted(path.name for path in Path("dist").iterdir()) == sorted(made.files)


def test_building_runs_nothing_of_the_engine(forge: LocalForge, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    commit = put(forge, code=f"open({str(mark)!r}, 'w')\n")
    build_bundle(forge, ENGINE, commit, Version(0, 1, 0), tmp_path / "out")
    assert not mark.exists()


@pytest.mark.parametrize(
    "project",
    [
        PROJECT + '\n[tool.hatch.build.hooks.custom]\npath = "tiny_cpu/__main__.py"\n',
        PROJECT + '\n[tool.hatch.metadata.hooks.custom]\npath = "tiny_cpu/__main__.py"\n',
        PROJECT + '\n[tool.hatch.build.targets.wheel.hooks.custom]\npath = "tiny_cpu/__main__.py"\n',
        PROJECT + '\n[tool.hatch.build.targets.custom]\npath = "tiny_cpu/__main__.py"\n',
        PROJECT.replace("hatchling.build", "tiny_cpu.__main__").replace(
            "requires =", 'backend-path = ["."]\nrequires ='
        ),
        PROJECT.replace('"hatchling>=1.26"', '"hatchling>=1.26", "evil"'),
        PROJECT.replace(
            'version = "0.0.0+aa"', 'dynamic = ["version"]\n[tool.hatch.version]\nsource = "code"\npath = "x"'
        ),
        PROJECT.replace('version = "0.0.0+aa"', ""),
        PROJECT.replace("hatchling>=1.26", "hatchling @ https://evil.example/h.whl"),
        PROJECT + "\n]",
    ],
    ids=[
        "hook",
        "metadata",
        "target-hook",
        "target",
        "backend",
        "requires",
        "dynamic",
        "no-version",
        "url",
        "not-toml",
    ],
)
def test_a_project_whose_build_would_run_code_is_refused(forge: LocalForge, tmp_path: Path, project: str) -> None:
    commit = put(forge, project)
    with pytest.raises(RefusedError, match=r"pyproject\.toml"):
        build_bundle(forge, ENGINE, commit, Version(0, 1, 0), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_file_that_configures_the_build_is_refused(forge: LocalForge, tmp_path: Path) -> None:
    commit = put(forge, others={"hatch.toml": b'[build.hooks.custom]\npath = "tiny_cpu/__main__.py"\n'})
    with pytest.raises(RefusedError, match="must run no code"):
        build_bundle(forge, ENGINE, commit, Version(0, 1, 0), tmp_path / "out")


def test_an_engine_whose_records_do_not_hold_is_not_built(forge: LocalForge, tmp_path: Path) -> None:
    put(forge)
    commit = commit_on(forge, "main", {f"{FOLDER}tiny_cpu/model.py": b"print('other')\n"})
    with pytest.raises(RefusedError, match="was changed after it was generated"):
        build_bundle(forge, ENGINE, commit, Version(0, 1, 0), tmp_path / "out")
    with pytest.raises(InputError, match="there is no"):
        build_bundle(forge, "another", commit, Version(0, 1, 0), tmp_path / "out")


def test_a_bundle_from_another_job_is_read_only_if_it_is_whole(forge: LocalForge, tmp_path: Path) -> None:
    made = build_bundle(forge, ENGINE, put(forge), Version(0, 1, 0), tmp_path / "good")
    assert read_bundle(made.folder) == made
    for name, harm in {
        "changed": lambda folder: (folder / "manifest.json").write_text("{}"),
        "more": lambda folder: (folder / "x.whl").write_text(""),
        "fewer": lambda folder: (folder / "evidence.json").unlink(),
        "link": lambda folder: (
            shutil.move(folder / "manifest.json", tmp_path / "m.json"),
            (folder / "manifest.json").symlink_to(tmp_path / "m.json"),
        ),
        "path": lambda folder: (folder / DIGESTS).write_text(
            (folder / DIGESTS).read_text() + f"{'0' * 64}  ../m.json\n"
        ),
    }.items():
        folder = tmp_path / name
        shutil.copytree(made.folder, folder)
        harm(folder)
        with pytest.raises(RefusedError):
            read_bundle(folder)
    with pytest.raises(InputError, match="metainfer bundle"):
        read_bundle(tmp_path)


def test_the_plan_of_a_release_writes_nothing_and_its_notes_name_the_wheel(forge: LocalForge, tmp_path: Path) -> None:
    commit = put(forge)
    plan = plan_release(forge, ENGINE)
    assert (plan.tag, plan.commit, plan.created) == (f"{ENGINE}/v0.1.0", commit, True)
    assert not forge.tags("")
    made = release(forge, ENGINE, ALICE)
    notes = release_notes(forge, made)
    wheel = next(
        name for name in build_bundle(forge, ENGINE, commit, made.version, tmp_path / "out").files if "whl" in name
    )
    assert f"pip install {wheel}" in notes
    # An engine gets its model from a folder only; which commands an engine has, its own contract says.
    assert f"metainfer model fetch specs/{ENGINE}.yaml" in notes
    assert "python -m tiny_cpu fetch --from MODEL_FOLDER" in notes
    assert not plan_release(forge, ENGINE).created


def test_a_wheel_holds_the_package_alone(forge: LocalForge, tmp_path: Path) -> None:
    made = build_bundle(forge, ENGINE, put(forge), Version(0, 1, 0), tmp_path / "out")
    wheel = next(made.folder / name for name in made.files if name.endswith(".whl"))
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert top == {"tiny_cpu", "metainfer_engine_tiny_cpu-0.1.0.dist-info"}


def test_a_bundle_of_another_version_or_engine_is_not_offered(forge: LocalForge, tmp_path: Path) -> None:
    commit = put(forge)
    built = build_bundle(forge, ENGINE, commit, Version(0, 1, 0), tmp_path / "dist")
    require_bundle_of(forge, ENGINE, commit, Version(0, 1, 0), built)
    with pytest.raises(RefusedError, match=r"is not of tiny-cpu 0\.2\.0 .*metainfer bundle tiny-cpu --version 0\.2\.0"):
        require_bundle_of(forge, ENGINE, commit, Version(0, 2, 0), built)
    later = put(forge, code="print('other')\n")
    with pytest.raises(RefusedError, match=r"manifest\.json"):
        require_bundle_of(forge, ENGINE, later, Version(0, 1, 0), built)
