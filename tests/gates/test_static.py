"""The static gate on a real engine, and on each fault that it must see."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from metainfer.errors import InputError
from metainfer.gates import static_tools
from metainfer.gates.report import GateLog
from metainfer.gates.static import MAX_LINES, check_files, static_gate
from metainfer.gates.subject import clean_subject, read_constants
from metainfer.sandbox import Sandbox
from tests.gates.engines import Tiny
from tests.gates.faults import STATIC, Fault


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_generated_engines_pass(name: str, request: pytest.FixtureRequest, sandbox: Sandbox) -> None:
    tiny: Tiny = request.getfixturevalue(name)
    report = static_gate(tiny.engine, sandbox)
    assert report.passed, report.findings
    assert report.figures["sandbox"] is True
    assert report.figures["lines_of_code"] <= MAX_LINES


@pytest.mark.parametrize("fault", STATIC, ids=str)
def test_the_gate_sees(fault: Fault, request: pytest.FixtureRequest, sandbox: Sandbox, tmp_path: Path) -> None:
    tiny: Tiny = request.getfixturevalue(fault.engine)
    faulty = tiny.with_fault(fault.module, fault.old, fault.new, tmp_path)
    report = static_gate(faulty.engine, sandbox)
    assert report.verdict == "failed"
    assert any(re.search(fault.found, finding.message) for finding in report.findings), report.findings


def _add_file(folder: Path) -> None:
    (folder / "notes.md").write_text("hello")


def _change_file(folder: Path) -> None:
    with (folder / "README.md").open("a") as stream:
        stream.write("one more line\n")


def _remove_file(folder: Path) -> None:
    (folder / "README.md").unlink()


def _link_file(folder: Path) -> None:
    (folder / "link.md").symlink_to("/etc/passwd")


def _link_folder(folder: Path) -> None:
    (folder / "more").symlink_to("/etc")


def _binary(folder: Path) -> None:
    (folder / "kernel.so").write_bytes(b"\x7fELF\x00")


@pytest.mark.parametrize("change", [_add_file, _change_file, _remove_file, _link_file, _link_folder, _binary])
def test_a_folder_that_is_not_its_manifest_is_seen(change: Callable[[Path], None], qwen2: Tiny, tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    shutil.copytree(qwen2.engine, folder)
    change(folder)
    log = GateLog()
    check_files(folder, log)
    assert log.findings


def test_an_engine_over_its_size_budget_is_red(qwen2: Tiny, tmp_path: Path, sandbox: Sandbox) -> None:
    path = "batch.py"
    padding = "".join(f"\n\nASSIGNED_{index} = {index + 1}\nUSED_{index} = ASSIGNED_{index}\n" for index in range(1000))
    faulty = qwen2.with_fault(path, "import torch\n", "import torch\n" + padding, tmp_path)
    report = static_gate(faulty.engine, sandbox)
    assert any("more than" in finding.message for finding in report.findings)
    in_progress = static_gate(faulty.engine, sandbox, max_lines=None)
    assert not any("more than" in finding.message for finding in in_progress.findings)


def test_what_runs_is_only_what_the_manifest_lists(qwen2: Tiny, tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    shutil.copytree(qwen2.engine, folder)
    cached = folder / qwen2.package / "__pycache__"
    cached.mkdir()
    (cached / "engine.cpython-311.pyc").write_bytes(b"not what the source says")
    (folder / "conftest.py").write_text("raise SystemExit")
    with clean_subject(folder) as subject:
        names = {path.name for path in subject.folder.rglob("*") if path.is_file()}
    assert "engine.py" in names
    assert not names & {"engine.cpython-311.pyc", "conftest.py"}


def test_a_manifest_cannot_reach_outside_of_its_folder(qwen2: Tiny, tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    shutil.copytree(qwen2.engine, folder)
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match=r"README\.md"), clean_subject(folder):
        pass


@pytest.mark.parametrize("text", ["X = 1\n", "import os\nX: int = 1\n", "X: int = f()\n", "X: int = 1 if Y else 2\n"])
def test_a_config_holds_nothing_but_constants(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(text)
    with pytest.raises(InputError, match=r"config\.py"):
        read_constants(tmp_path / "config.py")


def test_the_engines_own_configuration_of_the_linter_is_not_read(qwen2: Tiny, tmp_path: Path) -> None:
    faulty = qwen2.with_fault("batch.py", "import torch\n", "import torch\nimport json\n", tmp_path)
    (faulty.engine / "ruff.toml").write_text('lint.ignore = ["ALL"]\n')
    faulty.sign()
    log = GateLog()
    with clean_subject(faulty.engine) as subject:
        static_tools.run_ruff(subject, log)
    assert any("F401" in finding.message for finding in log.findings)
