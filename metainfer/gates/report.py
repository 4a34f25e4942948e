"""What a gate says: a verdict, figures, findings, and the one command that repeats it."""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from metainfer.errors import MetainferError
from metainfer.files import pretty_json

Figure = bool | int | float | str
Verdict = Literal["passed", "failed", "error"]

MAX_FINDINGS = 40
"""Findings kept in a report; what is beyond is counted. A person reads the first few."""
_MAX_TEXT = 600


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GateFinding(_Record):
    """One thing that does not hold. Text and figures may come from code that nobody has reviewed."""

    message: str
    figures: dict[str, Figure] = {}
    where: str = ""
    """File and line, prompt, request or tensor; relative to the engine's folder."""


class GateReport(_Record):
    """The outcome of one gate. There is no verdict for a gate that did not run: a skip is not a pass."""

    gate: str
    verdict: Verdict
    """`failed`: the engine breaks a promise. `error`: the gate could not find out, which is no better."""
    figures: dict[str, Figure]
    findings: list[GateFinding]
    seconds: float
    reproduce: str

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"


class Evidence(_Record):
    """`evidence.json`: what was measured about one engine, where and when."""

    schema_: Literal["metainfer/evidence/v1"] = Field("metainfer/evidence/v1", alias="schema")
    input_hash: str
    machine: dict[str, Any]
    gates: list[GateReport]
    bench: dict[str, Any] | None = None
    """The benchmark's report as plain data."""
    optimise: dict[str, Any] | None = None
    """The report of an optimisation, if there was one."""
    created: str
    """UTC, ISO 8601."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @property
    def green(self) -> bool:
        """Whether there are gates and all passed."""
        return bool(self.gates) and all(report.passed for report in self.gates)

    def encode(self) -> bytes:
        return pretty_json(self.model_dump(mode="json", by_alias=True))


def make_evidence(input_hash: str, gates: list[GateReport], bench: dict[str, Any] | None = None) -> Evidence:
    """Evidence of this machine and this moment."""
    now = datetime.now(UTC).replace(microsecond=0).isoformat()
    return Evidence(input_hash=input_hash, machine=machine_info(), gates=gates, bench=bench, created=now)


class GateLog:
    """Collects findings and figures while a gate runs, and keeps both within bounds."""

    def __init__(self) -> None:
        self.findings: list[GateFinding] = []
        self.figures: dict[str, Figure] = {}
        self.total = 0

    def find(self, message: str, where: str = "", **figures: Figure) -> None:
        """Note one thing that does not hold."""
        self.total += 1
        if len(self.findings) < MAX_FINDINGS:
            figures = {name: _bounded(value) for name, value in figures.items()}
            self.findings.append(GateFinding(message=clip(message), where=clip(where, 200), figures=figures))

    def figure(self, name: str, value: Figure) -> None:
        """Set a figure of the report."""
        self.figures[name] = _bounded(value)


def run_gate(gate: str, reproduce: str, body: Callable[[GateLog], None]) -> GateReport:
    """Run `body`, and make a report of what it logged. An exception is the verdict `error`, never a pass."""
    log = GateLog()
    began = time.monotonic()
    error = ""
    try:
        body(log)
    except MetainferError as problem:
        error = str(problem)
    except Exception as problem:  # whatever a gate stumbles over must turn it red, not end the run
        error = f"{type(problem).__name__}: {problem}"
    if error:
        log.find(f"the gate could not be completed: {error}")
    if log.total:
        log.figure("findings", log.total)
    return GateReport(
        gate=gate,
        verdict="error" if error else "failed" if log.total else "passed",
        figures=log.figures,
        findings=log.findings,
        seconds=round(time.monotonic() - began, 3),
        reproduce=reproduce,
    )


def reproduction(gate: str, engine_dir: Path, seed: int | None = None) -> str:
    """The command that repeats a gate, typed from the repository's root or, elsewhere, from the engine's parent."""
    command = f"metainfer gate {gate} {_shown(engine_dir)}"
    return command if seed is None else f"{command} --seed {seed}"


def for_engine_at(report: GateReport, judged: Path, path: str) -> GateReport:
    """The same report with the command for an engine that was judged in one folder and will lie at `path`."""
    return report.model_copy(update={"reproduce": report.reproduce.replace(_shown(judged), shlex.quote(path))})


def _shown(engine_dir: Path) -> str:
    here, resolved = Path.cwd(), engine_dir.resolve()
    shown = resolved.relative_to(here) if resolved.is_relative_to(here) else Path(resolved.name)
    return shlex.quote(shown.as_posix())


def machine_info() -> dict[str, Any]:
    """What figures depend on besides the engine. Names no host, no user, no folder."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("metainfer", "torch", "transformers", "numpy", "openai")},
    }


def clip(text: str, limit: int = _MAX_TEXT) -> str:
    """`text` within `limit` characters: its beginning and its end, which says most of a traceback.

    What UTF-8 cannot hold, and control characters that could steer a terminal, are spelled out.
    """
    text = "".join(c if c in "\n\t" or c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def _bounded(value: Figure) -> Figure:
    if isinstance(value, str):
        return clip(value, 200)
    # JSON has no NaN and no infinity; a figure that is one must still be seen.
    if isinstance(value, float) and not float("-inf") < value < float("inf"):
        return str(value)
    return value


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
