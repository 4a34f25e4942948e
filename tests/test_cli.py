"""The command line: quick help, errors as messages, exit codes as documented."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from metainfer import __version__
from metainfer.errors import ExitCode

ROOT = Path(__file__).parent.parent
TINY = (ROOT / "specs/tiny-qwen2.yaml").read_text(encoding="utf-8")


def metainfer(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "metainfer", *arguments]
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


def test_an_error_moves_no_cursor() -> None:
    result = metainfer("scores", "no\x1b[2J\u202esuch.yaml")
    assert result.returncode == ExitCode.BAD_INPUT
    assert "no\\x1b[2J\\u202esuch.yaml" in result.stderr


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


def test_the_package_runs_as_the_script_does() -> None:
    command = [sys.executable, "-m", "metainfer", "--version"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (ExitCode.OK, f"metainfer {__version__}\n")


def test_an_interrupted_command_says_so(tmp_path: Path) -> None:
    from metainfer.checkpoint.sources import _source_key
    from metainfer.spec.load import load_spec

    (tmp_path / "model").mkdir()
    spec = tmp_path / "held.yaml"
    spec.write_text(re.sub(r"source:\n(    .*\n)+", "source:\n    path: model\n", TINY))
    lock = tmp_path / "cache/sources" / f"{_source_key(load_spec(spec).model.source, tmp_path)}.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # so that the command waits for it
        process = subprocess.Popen(
            [sys.executable, "-m", "metainfer", "model", "fetch", str(spec)],
            cwd=ROOT,
            env={**os.environ, "METAINFER_CACHE": str(tmp_path / "cache")},
            stderr=subprocess.PIPE,
            text=True,
            # A test run in the background ignores the signal, and so would whatever it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        wait_until(lambda: holds_open(process.pid, lock) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (
        ExitCode.INTERRUPTED,
        "interrupted; nothing half-done was kept, run the same command again\n",
    )


def holds_open(pid: int, path: Path) -> bool:
    links = Path(f"/proc/{pid}/fd").iterdir()
    return any(os.path.realpath(link) == str(path.resolve()) for link in links)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_without_runs_the_list_says_so(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    result = metainfer("runs", "list", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (ExitCode.OK, "no runs yet; `metainfer run SPEC` makes one\n")


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A copy of the demo engine."""
    return Path(shutil.copytree(ROOT / "engines/qwen2.5-coder-0.5b-cpu", tmp_path / "engine"))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (os.mkfifo, "is a FIFO; name a regular file"),
        (lambda path: path.symlink_to(path.name), "a link that leads nowhere"),
        (lambda path: path.mkdir(), "is a folder; name a regular file"),
        (lambda path: path.write_bytes(b"\xff"), "not UTF-8 at byte 0"),
        (lambda path: path.write_text("def\n"), "not Python"),
        (lambda path: None, "No such file"),
    ],
    ids=["FIFO", "loop", "folder", "binary", "no Python", "absent"],
)
def test_explain_refuses_in_a_line_what_it_cannot_read(
    damage: Callable[[Path], object], complaint: str, engine: Path
) -> None:
    path = engine / "qwen2_5_coder_0_5b_cpu/model.py"
    path.unlink()
    damage(path)
    result = metainfer("explain", f"{path}:1")
    assert result.returncode == ExitCode.BAD_INPUT
    assert result.stderr.startswith(f"error: {path}: {complaint}")
    assert len(result.stderr.splitlines()) == 1


def test_explain_names_evidence_that_is_none(engine: Path) -> None:
    (engine / "evidence.json").write_text("[]")
    result = metainfer("explain", f"{engine}/qwen2_5_coder_0_5b_cpu/model.py:1")
    assert result.returncode == ExitCode.BAD_INPUT
    assert f"error: {engine}/evidence.json: not a record of gates" in result.stderr


def test_a_folder_that_cannot_be_made_is_one_message() -> None:
    target = "/proc/no-such-place/forge.git"
    result = metainfer("forge", "init", target)
    assert result.returncode == ExitCode.ENVIRONMENT
    assert result.stderr.startswith("error: /proc/no-such-place")
    assert "Traceback" not in result.stderr
