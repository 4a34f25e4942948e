"""ruff, mypy and the C++ compiler, with rules that are pinned here: no file of the engine can loosen them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from metainfer.errors import MachineError
from metainfer.gates.report import GateLog
from metainfer.gates.subject import Subject
from metainfer.sandbox import Limits, Sandbox

RUFF_RULES = "E4,E7,E9,F,W,I,B,UP,SIM,C4,PIE,RET,PLE,PLW,S1,S3,S6,RUF005,RUF006,RUF013,RUF015,RUF100,ERA"
RUFF_IGNORED = "S101,S104,S311,S603,PLW2901,PLW0603,RET504"
"""Left out: asserts and fixed random seeds have their uses, and who may run a process is judged by imports."""
_LINE_LENGTH = 120
_MYPY = (
    "--strict",
    "--warn-unreachable",
    "--allow-untyped-calls",
    "--follow-imports=silent",
    "--ignore-missing-imports",
)
_CXX = ("g++", "-fsyntax-only", "-std=c++17", "-mavx2", "-mfma", "-fopenmp", "-Wall", "-Wextra", "-Werror")
_MAX_LINES = 20
_TIMEOUT_S = 300


def run_ruff(subject: Subject, log: GateLog) -> None:
    """Lint the package and its tests, ignoring every configuration found on disk and every blanket excuse."""
    from ruff.__main__ import find_ruff_bin

    command = [find_ruff_bin(), "check", "--isolated", "--no-cache", "--output-format=json", "--target-version=py311"]
    command += [f"--line-length={_LINE_LENGTH}", f"--select={RUFF_RULES}", f"--ignore={RUFF_IGNORED}"]
    command += [name for name in (subject.package, "tests") if (subject.folder / name).is_dir()]
    result = subprocess.run(
        command, cwd=subject.folder, env=_environment(), capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    try:
        complaints = json.loads(result.stdout)
    except ValueError:
        raise MachineError(f"ruff did not run: {result.stderr.strip()[:500]}") from None
    for item in complaints:
        where = f"{Path(item['filename']).relative_to(subject.folder)}:{item['location']['row']}"
        log.find(f"ruff {item['code']}: {item['message']}", where)
    log.figure("lint findings", len(complaints))


def run_mypy(subject: Subject, log: GateLog, cache: Path | None) -> None:
    """Type the package strictly; the engine's own configuration is not read.

    `cache`: where mypy keeps what it learned of torch, by default in metainfer's own cache folder.
    """
    cache = cache or Path(os.environ.get("METAINFER_CACHE") or Path.home() / ".cache" / "metainfer") / "mypy"
    with tempfile.TemporaryDirectory(prefix="metainfer-mypy-") as scratch:
        config = Path(scratch, "mypy.ini")
        config.write_text("[mypy]\n", encoding="ascii")
        command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(cache)]
        command += ["--no-error-summary", "--hide-error-context", "--no-color-output", *_MYPY, "-p", subject.package]
        result = subprocess.run(
            command,
            cwd=subject.folder,
            env=_environment() | {"MYPYPATH": str(subject.folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    errors = [line for line in result.stdout.splitlines() if ": error:" in line]
    if result.returncode not in (0, 1) or (result.returncode == 1 and not errors):
        raise MachineError(f"mypy did not run: {(result.stderr or result.stdout).strip()[:500]}")
    for line in errors:
        where, _, message = line.partition(": error: ")
        log.find(f"mypy: {message}", where)
    log.figure("type errors", len(errors))


def run_compiler(subject: Subject, sandbox: Sandbox, log: GateLog) -> None:
    """Compile every C++ file as far as its errors and warnings; inside the sandbox, since it may include any file."""
    sources = subject.sources(".cpp")
    log.figure("C++ files", len(sources))
    if not sources:
        return
    with sandbox.room({"engine": subject.folder}) as room:
        log.figure("sandbox", room.isolating)
        paths = [room.path("engine", subject.shown(path)) for path in sources]
        result = room.run([*_CXX, *paths], limits=Limits(wall_s=_TIMEOUT_S))
    if result.ok:
        return
    errors = [line for line in result.stderr.splitlines() if "error" in line]
    if not errors:
        raise MachineError(f"the C++ compiler did not run ({result.explain()}); install g++ (apt install g++)")
    for line in errors[:_MAX_LINES]:
        where, _, message = line.partition(" error: ")
        log.find(f"g++: {message or line}", where.removeprefix("/engine/").rstrip(":"))


def _environment() -> dict[str, str]:
    """No variable of the caller steers the tools, apart from where programs are."""
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": tempfile.gettempdir(), "LANG": "C.UTF-8"}
