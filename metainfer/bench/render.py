"""A report as plain tables for people, and as one JSON line for programs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from metainfer.bench.figures import FIGURES
from metainfer.bench.metrics import Spread
from metainfer.bench.report import BenchReport
from metainfer.files import canonical_json

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH = 118
_MB = 1e6


def render(report: BenchReport, *, width: int = _WIDTH) -> str:
    """The whole report as text: figures, ceilings, comparison, goals, doubts, formulas; the last line is JSON."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, highlight=False, markup=False, emoji=False)
    for part in _parts(report):
        console.print(part)
    return stream.getvalue() + json_line(report) + "\n"


def json_line(report: BenchReport) -> str:
    """The report as one line of JSON."""
    return canonical_json(report.model_dump(mode="json", by_alias=True)).decode()


def _parts(report: BenchReport) -> Iterator[RenderableType]:
    settings, environment = report.settings, report.environment
    yield (
        f"{report.engine}: {report.repeats_done} of {settings.repeats} repeats in {report.seconds:.0f} s, "
        f"{settings.threads} threads each, greedy, {report.prompts}"
    )
    yield (
        f"decode {settings.decode_prompt} in / {settings.decode_tokens} out; prefill {settings.prefill_prompt} in; "
        f"load {settings.clients} clients x {settings.requests_per_client} x "
        f"{settings.load_prompt} in / {settings.load_tokens} out"
    )
    yield (
        f"{environment.cpu}, {environment.usable_cores} of {environment.logical_cores} cores, "
        f"last cache {environment.last_cache_bytes >> 20} MiB, memory {environment.memory_bytes / 1e9:.0f} GB, "
        f"governor {environment.governor}, {environment.system}"
    )
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    yield (
        f"Python {environment.python}, {packages}; load average {environment.load_average[0]:.2f}, "
        f"steal {report.noise.steal_share:.1%}, other processes {report.noise.foreign_share:.1%}"
    )
    yield _figures(report)
    yield _ceilings(report)
    for subject in report.subjects:
        yield f"{subject.info.name} {subject.info.version}: {subject.info.mode}"
    yield from (f"MISSING {missing.name}: {missing.reason}" for missing in report.missing)
    for ratio in report.ratios:
        label = FIGURES[ratio.figure].label
        yield f"{label}: {report.engine} / {ratio.peer} = {_spread(ratio.ratio)}"
    for agreement in report.agreements:
        prefixes = ", ".join(map(str, agreement.prefixes))
        yield f"same greedy tokens as {agreement.peer}, of {agreement.tokens} per prompt: {prefixes}"
    if report.goals:
        yield _goals(report)
    yield from (f"WARNING {warning}" for warning in report.warnings)
    yield "Formulas"
    yield from (f"  {name} = {formula}" for name, formula in report.formulas.items())


def _figures(report: BenchReport) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, title="median (least to greatest over repeats)", title_justify="left")
    table.add_column("figure")
    table.add_column("unit")
    for subject in report.subjects:
        table.add_column(f"{subject.info.name} {subject.info.weight_dtype}", justify="right")
    for name, kind in FIGURES.items():
        cells = [subject.figures.get(name) for subject in report.subjects]
        if any(cells):
            table.add_row(kind.label, kind.unit, *(_spread(cell) if cell else "-" for cell in cells))
    memories = [subject.memory for subject in report.subjects]
    table.add_row("peak RSS", "MB", *(f"{m.peak_rss_bytes / _MB:.0f}" if m else "-" for m in memories))
    table.add_row("not file-backed", "MB", *(f"{m.private_bytes / _MB:.0f}" if m else "-" for m in memories))
    table.add_row("start", "s", *(f"{subject.start_s:.1f}" for subject in report.subjects))
    return table


def _ceilings(report: BenchReport) -> str:
    memory = Spread.of([ceiling.memory_gb_s for ceiling in report.ceilings])
    compute = Spread.of([ceiling.compute_gflop_s for ceiling in report.ceilings])
    best = max(report.ceilings, key=lambda ceiling: ceiling.memory_gb_s)
    kernels = ", ".join(f"{name} {rate:.1f}" for name, rate in best.memory_kernels.items())
    return (
        f"Ceilings, {len(report.ceilings)} readings of {best.streamed_bytes >> 20} MiB: memory {_spread(memory)} GB/s, "
        f"fp32 products {_spread(compute)} GFLOP/s\n  best reading: {kernels}"
    )


def _goals(report: BenchReport) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    for column in ("goal", "wanted", "measured", "met", ""):
        table.add_column(column)
    for goal in report.goals:
        wanted = f"{'at least' if goal.at_least else 'at most'} {_number(goal.wanted)}"
        measured = "-" if goal.measured is None else _number(goal.measured)
        table.add_row(goal.goal, wanted, measured, "yes" if goal.met else "NO", goal.note)
    return table


def _spread(spread: Spread) -> str:
    return f"{_number(spread.median)} ({_number(spread.min)} to {_number(spread.max)})"


def _number(value: float) -> str:
    """Three significant digits, without an exponent."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"
