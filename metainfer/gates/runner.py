"""All gates on one engine, cheapest first; the first red one ends it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.errors import InputError
from metainfer.gates.report import GateLog, GateReport, reproduction, run_gate
from metainfer.sandbox.folders import unwinding_on_signals

if TYPE_CHECKING:
    from metainfer.checkpoint.sources import ModelFolder
    from metainfer.progress import Progress
    from metainfer.sandbox.sandbox import Sandbox
    from metainfer.spec.models import Spec

GATES: tuple[str, ...] = ("spec", "static", "unit", "numerics", "serving")


def run_gates(
    engine_dir: Path,
    *,
    spec: Spec,
    model: ModelFolder,
    ckb_root: Path,
    sandbox: Sandbox,
    progress: Progress,
    seed: int = 0,
    gates: Sequence[str] = GATES,
    mypy_cache: Path | None = None,
    keep_going: bool = False,
) -> list[GateReport]:
    """Run `gates` in their fixed order and return a report for each that ran.

    A gate after a red one has no report, which nobody takes for a pass; with `keep_going` all run. `ckb_root` must be
    the base commit's knowledge, never the candidate's. `mypy_cache`: see `static_gate`.
    Raises InputError for an unknown gate.
    """
    if unknown := sorted(set(gates) - set(GATES)):
        raise InputError(f"there is no gate named {', '.join(unknown)}; gates are {', '.join(GATES)}")
    if not gates:
        raise InputError(f"no gate was asked for; gates are {', '.join(GATES)}")
    with (
        unwinding_on_signals(),
        tempfile.TemporaryDirectory(prefix="metainfer-kernels-", ignore_cleanup_errors=True) as kernels,
    ):
        makers = _makers(engine_dir, spec, model, ckb_root, sandbox, seed, mypy_cache, Path(kernels))
        reports: list[GateReport] = []
        for name in (gate for gate in GATES if gate in gates):
            progress.start(name)
            report = _with_sandbox(makers[name], name, engine_dir, sandbox)
            progress.done(name, summary(report))
            reports.append(report)
            if not report.passed and not keep_going:
                break
    return reports


def summary(report: GateReport) -> str:
    """One line for people: the verdict and, if it is red, the first finding."""
    if report.passed:
        return "passed"
    first = report.findings[0] if report.findings else None
    place = f"{first.where}: " if first and first.where else ""
    return f"{report.verdict}: {place}{first.message if first else 'no finding'}"


def _makers(
    engine_dir: Path,
    spec: Spec,
    model: ModelFolder,
    ckb_root: Path,
    sandbox: Sandbox,
    seed: int,
    mypy_cache: Path | None,
    kernels: Path,
) -> dict[str, Callable[[], GateReport]]:
    # Imported where it runs: each gate brings heavy libraries of its own.
    def spec_() -> GateReport:
        from metainfer.gates.specification import spec_gate

        return spec_gate(engine_dir, spec, model, ckb_root)

    def static() -> GateReport:
        from metainfer.gates.static import static_gate

        return static_gate(engine_dir, sandbox, mypy_cache=mypy_cache)

    def unit() -> GateReport:
        from metainfer.gates.unit import unit_gate

        return unit_gate(engine_dir, ckb_root, sandbox, seed=seed, kernels=kernels)

    def numerics() -> GateReport:
        from metainfer.gates.numerics import numerics_gate

        return numerics_gate(engine_dir, model.path, sandbox, seed=seed, kernels=kernels)

    def serving() -> GateReport:
        from metainfer.gates.serving import serving_gate

        return serving_gate(engine_dir, model.path, sandbox, seed=seed, kernels=kernels)

    return {"spec": spec_, "static": static, "unit": unit, "numerics": numerics, "serving": serving}


def _with_sandbox(make: Callable[[], GateReport], name: str, engine_dir: Path, sandbox: Sandbox) -> GateReport:
    """The gate's report; where code of the engine runs without a sandbox, or cannot run for want of one, it says so."""
    if name == "spec":
        return make()
    if problem := sandbox.problem():
        if not sandbox.allow_unsandboxed:
            return run_gate(name, reproduction(name, engine_dir), lambda log: _refuse(log, problem))
        report = make()
        return report.model_copy(update={"figures": {**report.figures, "sandbox": False}})
    return make()


def _refuse(log: GateLog, problem: str) -> None:
    log.find(problem)
