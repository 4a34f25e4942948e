"""The command line: quick help, errors as messages, exit codes as documented."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metainfer import __version__
from metainfer.errors import ExitCode

ROOT = Path(__file__).parent.parent


def metainfer(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from metainfer.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_help_imports_nothing_heavy() -> None:
    heavy = ["torch", "transformers", "libcst", "openai", "huggingface_hub", "gguf", "git", "fastapi", "numpy", "httpx"]
    code = (
        "import sys\nfrom metainfer.cli import main\nsys.argv = ['metainfer', '--help']\n"
        f"try:\n    main()\nexcept SystemExit:\n    pass\nprint([m for m in {heavy} if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("[]")


def test_every_documented_command_exists() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    documented = set(re.findall(r"^\| `metainfer (\w+)", text, re.MULTILINE))
    shown = set(re.findall(r"^│ (\w+) ", metainfer("--help").stdout, re.MULTILINE))
    assert documented == shown


def test_exit_codes_are_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == {int(code) for code in ExitCode}


def test_a_wrong_spec_is_one_message_with_its_place_and_no_traceback(tmp_path: Path) -> None:
    spec = tmp_path / "bad.yaml"
    spec.write_text("apiVersion: metainfer/v1\nname: bad\nmodle: {}\n")
    result = metainfer("spec", "check", str(spec))
    assert result.returncode == ExitCode.BAD_INPUT
    assert re.search(r"bad\.yaml:3:\d+: modle: there is no such key; did you mean model\?", result.stderr)
    assert "Traceback" not in result.stderr


def test_all_specs_of_this_repository_are_valid() -> None:
    result = metainfer("spec", "check", *map(str, sorted((ROOT / "specs").glob("*.yaml"))))
    assert result.returncode == ExitCode.OK, result.stderr


def test_a_good_spec_is_a_line_on_standard_output() -> None:
    result = metainfer("spec", "check", "specs/tiny-qwen2.yaml", "specs/tiny-qwen3.yaml")
    assert re.fullmatch(
        r"specs/tiny-qwen2\.yaml: ok, cpu-x86-avx2, \d+ × [\d,]+ tokens\n"
        r"specs/tiny-qwen3\.yaml: ok, cpu-x86-avx2, \d+ × [\d,]+ tokens\n",
        result.stdout,
    )


@pytest.mark.parametrize("command", [["spec", "check"], ["generate"]])
def test_a_spec_under_another_name_is_refused_at_its_name(command: list[str], tmp_path: Path) -> None:
    spec = Path(shutil.copyfile(ROOT / "specs/tiny-qwen2.yaml", tmp_path / "other.yaml"))
    result = metainfer(*command, str(spec))
    assert result.returncode == ExitCode.BAD_INPUT
    assert f"{spec}:4:1: name: is tiny-qwen2, but the file is other.yaml; make them agree" in result.stderr


def test_outside_a_repository_the_error_says_so(tmp_path: Path) -> None:
    result = metainfer("pr", "list", cwd=tmp_path)
    assert result.returncode == ExitCode.BAD_INPUT
    assert "not inside a Git repository" in result.stderr


@pytest.mark.parametrize("place", ["engines/x", "model.py:one"])
def test_explain_wants_a_file_and_a_line(place: str) -> None:
    result = metainfer("explain", place)
    assert result.returncode == ExitCode.BAD_INPUT
    assert "write FILE:LINE" in result.stderr


def test_the_knowledge_base_is_consistent() -> None:
    result = metainfer("ckb", "check")
    assert (result.returncode, result.stdout) == (ExitCode.OK, "18 contracts are consistent\n")


def test_files_that_do_not_fit_together_are_told_and_red(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "ckb", tmp_path / "ckb", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "ckb/family/rope/exemplars/left_over.py").write_text("pass\n")
    result = metainfer("ckb", "check", "--root", str(tmp_path / "ckb"))
    assert result.returncode == ExitCode.RED
    assert "family/rope: unused-file: " in result.stdout
    assert "left_over.py" in result.stdout


def test_a_gates_report_stands_alone_on_standard_output(tmp_path: Path) -> None:
    engine = tmp_path / "tiny-qwen3"
    assert metainfer("generate", "specs/tiny-qwen3.yaml", "--out", str(engine)).returncode == ExitCode.OK
    result = metainfer("gate", "spec", str(engine))
    assert json.loads(result.stdout)["verdict"] == "passed"
    assert "spec" in result.stderr


def test_the_version_needs_no_command() -> None:
    result = metainfer("--version")
    assert (result.returncode, result.stdout) == (ExitCode.OK, f"metainfer {__version__}\n")


def test_a_folder_that_cannot_be_made_is_one_message() -> None:
    target = "/proc/no-such-place/forge.git"
    result = metainfer("forge", "init", target)
    assert result.returncode == ExitCode.ENVIRONMENT
    assert result.stderr.startswith("error: /proc/no-such-place")
    assert "Traceback" not in result.stderr
