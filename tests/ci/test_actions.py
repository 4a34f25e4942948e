"""What reaches a runner: only our own commands, within what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metainfer.ci.actions import Annotation, add_summary, annotate, commands_stopped, safe_lines, set_outputs
from metainfer.ci.places import placed
from metainfer.ci.secrets import SecretInReachError, require_no_secrets, secret_complaints


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    return tmp_path


def test_an_annotation_is_one_command_whatever_its_text_holds() -> None:
    one = Annotation("error", "50%\n::error::x\r\nend", "specs/a:b,c.yaml", 3, 7)
    assert one.command() == "::error file=specs/a%3Ab%2Cc.yaml,line=3,col=7::50%25%0A::error::x%0Aend"


def test_ten_annotations_at_most_the_worst_first(runner: Path, capsys: pytest.CaptureFixture[str]) -> None:
    annotate([Annotation("warning", f"w{n}") for n in range(8)] + [Annotation("error", f"e{n}") for n in range(4)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[:4] == [f"::error::e{n}" for n in range(4)]
    assert lines[-1] == "::warning::3 more; the summary of this step has them all"


def test_elsewhere_annotations_are_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    annotate([Annotation("error", "wrong\x1b[2J", "a.yaml", 3)])
    assert capsys.readouterr().out == "error: a.yaml:3: wrong[2J\n"


def test_no_line_of_foreign_text_commands_a_runner() -> None:
    text = "fine\n::set-output name=x::1\n  ::error::x\n##[error]x\n\x1b[31m\u202ered"
    lines = safe_lines(text).split("\n")
    assert not any(line.lstrip().startswith("::") for line in lines)
    assert "##[" not in "".join(lines)
    assert lines[-1] == "[31mred"


def test_an_output_cannot_set_another(runner: Path) -> None:
    set_outputs({"reason": "x\nstatus=created\nend-0", "status": "blocked"})
    text = (runner / "output").read_text()
    parsed = {}
    lines = iter(text.splitlines())
    for line in lines:
        name, _, end = line.partition("<<")
        parsed[name] = "\n".join(iter(lambda: next(lines), end))
    assert parsed == {"reason": "x\nstatus=created\nend-0", "status": "blocked"}


def test_a_summary_stays_below_what_is_shown(runner: Path) -> None:
    add_summary("é" * 2_000_000)
    assert (runner / "summary").stat().st_size <= 1 << 20


def test_while_generated_code_speaks_nothing_is_a_command(runner: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with commands_stopped():
        print("::error::x")
    first, _, last = capsys.readouterr().out.splitlines()
    token = first.removeprefix("::stop-commands::")
    assert len(token) == 32
    assert last == f"::{token}::"


def test_errors_with_places_become_annotations_there() -> None:
    text = "/tmp/x/specs/a.yaml:3:5: name: is missing\nspecs/a.yaml:9:1: wrong: very\nand more"
    assert placed(text, "specs/a.yaml") == [
        Annotation("error", "name: is missing", "specs/a.yaml", 3, 5),
        Annotation("error", "wrong: very", "specs/a.yaml", 9, 1),
        Annotation("error", "and more", "specs/a.yaml"),
    ]


@pytest.mark.parametrize(
    "name",
    ["GITHUB_TOKEN", "GH_TOKEN", "METAINFER_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "METAINFER_APP_KEY",
     "ACTIONS_RUNTIME_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "DB_PASSWORD", "my_pat", "SSH_AUTH_SOCK"],
)  # fmt: skip
def test_a_secret_in_the_environment_is_refused_by_name(name: str) -> None:
    with pytest.raises(SecretInReachError, match=name) as refused:
        require_no_secrets({name: "some-value", "PATH": "/usr/bin"})
    assert "some-value" not in str(refused.value)


def test_a_secret_under_a_harmless_name_is_refused_by_its_value() -> None:
    with pytest.raises(SecretInReachError, match="COLOUR"):
        require_no_secrets({"COLOUR": "ghp_" + "a1B2" * 9})


def test_what_hosted_runners_set_is_no_secret() -> None:
    usual = ["PATH", "HOME", "GITHUB_REPOSITORY", "GITHUB_OUTPUT", "GITHUB_WORKFLOW_SHA", "RUNNER_TEMP", "CI", "LANG",
             "PIPX_HOME", "JAVA_HOME_17_X64", "AGENT_TOOLSDIRECTORY", "ACTIONS_RUNNER_ACTION_ARCHIVE_CACHE",
             "METAINFER_CACHE", "OMP_NUM_THREADS", "KEYBOARD", "XDG_RUNTIME_DIR", "GITHUB_PATH"]  # fmt: skip
    require_no_secrets(dict.fromkeys(usual, "a-value") | {"GITHUB_TOKEN": ""})


def test_engines_hold_nothing_that_looks_like_a_secret() -> None:
    """A scan that cries at every engine is soon switched off."""
    root = Path(__file__).parents[2]
    files = [p for top in ("engines", "ckb", "specs") for p in (root / top).rglob("*") if p.is_file()]
    texts = {str(p.relative_to(root)): p.read_bytes() for p in files if p.suffix != ".pyc"}
    assert len(texts) > 50
    assert secret_complaints(texts, {}) == []


def test_errors_of_the_command_reach_the_log_escaped(tmp_path: Path) -> None:
    """Through the real process: a hostile path in an error neither commands the runner nor moves the cursor."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    command = [sys.executable, "-m", "metainfer", "ci", "plan", "--base", "x\n::error::y\x1b[2J", "--head", "HEAD"]
    environment = {**os.environ, "GITHUB_ACTIONS": "true", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    lines = (done.stdout + done.stderr).splitlines()
    assert [line for line in lines if line.lstrip().startswith("::")] == [done.stdout.splitlines()[0]]
    assert done.stdout.startswith("::error::")
    assert "\x1b" not in done.stdout + done.stderr
