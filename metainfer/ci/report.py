"""The folder in which a verdict goes from the job that judged to the one that publishes.

    evidence.json   what every gate found, and the benchmark (`metainfer.gates.report.Evidence`)
    bench.json      the benchmark once more, by itself, if there was one

It comes from a machine on which generated code ran, so the reader takes nothing from it but shapes, bounded figures,
and text that is shown as text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from metainfer.bench.report import BenchReport
from metainfer.ci.untrusted import HostileError, parse, read_folder
from metainfer.files import pretty_json, write_atomic
from metainfer.forge.evidence import REQUIRED_GATES
from metainfer.forge.paths import engine_folder
from metainfer.gates.report import MAX_FINDINGS, Evidence, GateReport
from metainfer.generate.manifest import EVIDENCE_NAME

if TYPE_CHECKING:
    from metainfer.spec.models import Spec

BENCH_NAME = "bench.json"
_WHERE = "the report"
_KNOWN = (*REQUIRED_GATES, "performance")
_MAX_TEXT = 2000
_MAX_FIGURES = 200
_MAX_NODES = 20_000
_MAX_DEPTH = 12


@dataclass(frozen=True)
class Report:
    """A report that was read: shaped as it must be, for the inputs it is said to be for."""

    evidence: Evidence
    bench: BenchReport | None

    @property
    def red(self) -> list[str]:
        """Gates that did not pass, and those that a merge demands and that have no report."""
        given = {report.gate for report in self.evidence.gates}
        red = [report.gate for report in self.evidence.gates if not report.passed]
        return red + [gate for gate in REQUIRED_GATES if gate not in given]


def write_report(folder: Path, evidence: Evidence, bench: BenchReport | None) -> None:
    """Write a report to `folder`; files of an earlier one are replaced."""
    (folder / BENCH_NAME).unlink(missing_ok=True)
    if bench is not None:
        write_atomic(folder / BENCH_NAME, pretty_json(bench.model_dump(mode="json")))
    write_atomic(folder / EVIDENCE_NAME, evidence.encode())


def read_report(folder: Path, engine: str, input_hash: str, spec: Spec) -> Report:
    """Read what another job left. Raises HostileError with everything that is wrong; a red verdict is not wrong."""
    files = read_folder(folder, _WHERE, (EVIDENCE_NAME, BENCH_NAME))
    evidence = parse(Evidence, files, EVIDENCE_NAME, _WHERE)
    complaints = []
    if evidence.input_hash != input_hash:
        complaints.append(f"{EVIDENCE_NAME}: is for other inputs than the bundle")
    complaints += [f"{EVIDENCE_NAME}: {complaint}" for complaint in _gate_complaints(evidence, engine)]
    complaints += [f"{EVIDENCE_NAME}: {complaint}" for complaint in _size_complaints(evidence.model_dump(mode="json"))]
    if evidence.optimise is not None:
        complaints.append(f"{EVIDENCE_NAME}: optimise: this job optimises nothing")
    if complaints:
        raise HostileError(_WHERE, complaints)
    bench = _bench(evidence, files, engine)
    if complaints := _goal_complaints(spec, evidence, bench):
        raise HostileError(_WHERE, complaints)
    return Report(evidence, bench)


def _gate_complaints(evidence: Evidence, engine: str) -> Iterator[str]:
    names = [report.gate for report in evidence.gates]
    for name in sorted(set(names)):
        if name not in _KNOWN:
            yield f"there is no gate {ascii(name)[:60]}"
        elif names.count(name) > 1:
            yield f"two reports of the gate {name}"
    for report in evidence.gates:
        if not _repeats(report, engine):
            yield f"{ascii(report.gate)[:60]}: the command that is said to repeat it is none of metainfer's"
        if len(report.findings) > MAX_FINDINGS or len(report.figures) > _MAX_FIGURES:
            yield f"{ascii(report.gate)[:60]}: more findings or figures than a gate gives"
        if report.passed and report.findings:
            yield f"{ascii(report.gate)[:60]}: passed, and has findings"


def _repeats(report: GateReport, engine: str) -> bool:
    """Whether a person may type what the report says: the one command for this gate and engine."""
    place = re.escape(shlex.quote(engine_folder(engine).rstrip("/")))
    command = "bench" if report.gate == "performance" else f"gate {re.escape(report.gate)}"
    return re.fullmatch(rf"metainfer {command} {place}(?: --seed [0-9]{{1,10}})?", report.reproduce) is not None


def _size_complaints(data: object) -> list[str]:
    """Texts, depth and number of values within what our own reports need."""
    pending: list[tuple[object, int]] = [(data, 0)]
    seen = 0
    while pending:
        value, depth = pending.pop()
        seen += 1
        if seen > _MAX_NODES or depth > _MAX_DEPTH:
            return ["more, or deeper nested, than a report is"]
        if isinstance(value, str) and len(value) > _MAX_TEXT:
            return [f"a text of {len(value)} characters; none of ours has more than {_MAX_TEXT}"]
        if isinstance(value, Mapping):
            pending += [(key, depth + 1) for key in value]
            pending += [(inner, depth + 1) for inner in value.values()]
        elif isinstance(value, list | tuple):
            pending += [(inner, depth + 1) for inner in value]
    return []


def _bench(evidence: Evidence, files: dict[str, bytes], engine: str) -> BenchReport | None:
    if evidence.bench is None:
        if BENCH_NAME in files:
            raise HostileError(_WHERE, [f"{BENCH_NAME}: {EVIDENCE_NAME} knows of no benchmark"])
        return None
    alone = parse(BenchReport, files, BENCH_NAME, _WHERE)
    try:
        bench = BenchReport.model_validate(evidence.bench)
    except ValidationError:
        raise HostileError(_WHERE, [f"{EVIDENCE_NAME}: bench: not a benchmark's report"]) from None
    if bench != alone or evidence.bench != _plain(bench):
        raise HostileError(_WHERE, [f"{BENCH_NAME}: is not the benchmark that {EVIDENCE_NAME} holds"])
    if bench.engine != engine:
        raise HostileError(_WHERE, [f"{BENCH_NAME}: is of another engine"])
    return bench


def _goal_complaints(spec: Spec, evidence: Evidence, bench: BenchReport | None) -> list[str]:
    """What the goals' report says, held against the figures beside it."""
    from metainfer.pipeline.performance import performance_report

    given = next((report for report in evidence.gates if report.gate == "performance"), None)
    wanted = performance_report(spec, bench, Path(spec.name)) if bench else None
    if (given is None) is not (wanted is None):
        return [f"{EVIDENCE_NAME}: performance: goals and benchmark do not belong together"]
    if given and wanted and (given.verdict, given.figures) != (wanted.verdict, wanted.figures):
        return [f"{EVIDENCE_NAME}: performance: is not what {BENCH_NAME} comes to"]
    return []


def _plain(bench: BenchReport) -> dict[str, Any]:
    return bench.model_dump(mode="json")
