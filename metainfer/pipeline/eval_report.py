"""What an evaluation found: figures per contract, one report for people, and several side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from metainfer.errors import InputError
from metainfer.forge.markdown import inline


class Sample(BaseModel):
    """One attempt at one contract, with its repairs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    contract: str
    sample: int
    passed_at: int | None
    """The round whose answer held, 0 being the first answer; None if none did."""
    rounds: int
    tokens: int
    finding: str = ""
    """The first thing that was found in the last answer."""
    cut: bool = False
    """A limit ended it after an answer that did not hold: with all its repairs it might have held."""


class Score(BaseModel):
    """One contract's samples, summed up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    contract: str
    units: list[str]
    samples: int = Field(ge=0)
    passed_first: int = Field(ge=0)
    """Samples whose first answer held."""
    passed: int = Field(ge=0)
    """Samples that held, repairs included."""
    tokens: int = Field(ge=0)
    finding: str

    @model_validator(mode="after")
    def _adds_up(self) -> Score:
        if not self.passed_first <= self.passed <= self.samples:
            raise ValueError(f"{self.contract}: more samples held than were made")
        return self

    def pass_at(self, k: int) -> float | None:
        """Chance that one of k samples holds: 1 - C(n-c, k) / C(n, k) (arXiv:2107.03374). None for fewer samples."""
        if self.samples < k:
            return None
        return 1.0 - math.comb(self.samples - self.passed, k) / math.comb(self.samples, k)


class EvalReport(BaseModel):
    """What a model can do, under one reference policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    reference: str
    k: int = Field(ge=1)
    rounds: int = Field(ge=0)
    temperature: float = Field(ge=0, allow_inf_nan=False)
    prompts: int
    scores: list[Score]
    unfinished: list[str]
    """Contracts of which not all samples were made before the limit."""
    tokens: int = Field(ge=0)
    """Of all answers that were judged, also of those that were paid for earlier, prompts included."""
    cost_usd: float = Field(ge=0, allow_inf_nan=False)
    """Of the same."""
    wall_s: float = Field(ge=0, allow_inf_nan=False)
    stopped: str = ""
    """Why it ended early."""

    @model_validator(mode="after")
    def _once_each(self) -> EvalReport:
        names = [score.contract for score in self.scores]
        if len(set(names)) < len(names):
            raise ValueError("a contract has two scores")
        return self


def render(report: EvalReport) -> str:
    """The report for people: a line per contract, then the sum."""
    lines = [f"{'contract':32} {'n':>3} {'pass@1':>7} {'pass@' + str(report.k):>7} {'first':>6} {'tokens':>8}"]
    for score in report.scores:
        shares = f"{_share(score.pass_at(1)):>7} {_share(score.pass_at(report.k)):>7}"
        lines.append(f"{score.contract:32} {score.samples:3d} {shares} {score.passed_first:6d} {score.tokens:8,d}")
    whole = [score for score in report.scores if score.samples >= report.k]
    solved = sum(score.passed > 0 for score in whole)
    lines.append(
        f"{report.model}, reference {report.reference}: {solved} of {len(whole)} contracts held at least once, "
        f"{report.tokens:,} tokens, {report.cost_usd:g} USD, {report.wall_s:.0f} s"
    )
    if report.unfinished:
        lines.append(f"not finished: {', '.join(report.unfinished)}{': ' + report.stopped if report.stopped else ''}")
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def read_report(file: Path) -> EvalReport:
    """A report that `metainfer eval --out` wrote. InputError if it is none."""
    try:
        return EvalReport.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except ValidationError as error:
        raise InputError(f"{file}: no report of `metainfer eval --out` ({error.error_count()} problems)") from error


def side_by_side(reports: Sequence[EvalReport]) -> str:
    """A Markdown table: a row per contract, and per report `pass@1 / pass@k` of the samples that were made."""
    contracts = _contracts(reports)
    lines = [
        "| contract | " + " | ".join(inline(_title(report)) for report in reports) + " |",
        "|---|" + "---|" * len(reports),
        *(f"| {inline(name)} | " + " | ".join(_cell(report, name) for report in reports) + " |" for name in contracts),
        "| *held at least once* | " + " | ".join(map(_solved, reports)) + " |",
        "| *tokens* | " + " | ".join(f"{report.tokens:,}" for report in reports) + " |",
        "| *US dollars* | " + " | ".join(f"{report.cost_usd:g}" for report in reports) + " |",
        "| *seconds* | " + " | ".join(f"{report.wall_s:.0f}" for report in reports) + " |",
    ]
    return "\n".join(lines)


def plot(reports: Sequence[EvalReport], file: Path) -> None:
    """Draw pass@1 of every contract and report as a map of squares, in the format of the file's ending (svg, png, pdf).

    InputError if matplotlib is missing, or knows no such format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("a plot needs matplotlib: pip install 'metainfer[plot]'") from error
    contracts = _contracts(reports)
    shares = [[_pass_at_1(report, name) for report in reports] for name in contracts]
    figure = Figure(figsize=(2.5 + 1.6 * len(reports), 1.5 + 0.35 * len(contracts)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(
        [[math.nan if s is None else s for s in row] for row in shares], vmin=0, vmax=1, cmap="YlGn", aspect="auto"
    )
    axes.set_xticks(range(len(reports)), [_title(report).replace(", ", "\n") for report in reports], fontsize=8)
    axes.set_yticks(range(len(contracts)), contracts, fontsize=8)
    for y, row in enumerate(shares):
        for x, share in enumerate(row):
            axes.text(x, y, _share(share), ha="center", va="center", fontsize=8)
    axes.set_title("pass@1: share of first answers that held", fontsize=9)
    figure.colorbar(image, ax=axes, fraction=0.04)
    try:
        figure.savefig(file)
    except ValueError as error:
        raise InputError(f"{file}: {error}") from error


def _contracts(reports: Sequence[EvalReport]) -> list[str]:
    return list(dict.fromkeys(score.contract for report in reports for score in report.scores))


def _title(report: EvalReport) -> str:
    repairs = f", {report.rounds} repairs" if report.rounds else ""
    return f"{report.model}, {report.reference}{repairs}"


def _score_of(report: EvalReport, contract: str) -> Score | None:
    return next((score for score in report.scores if score.contract == contract and score.samples), None)


def _pass_at_1(report: EvalReport, contract: str) -> float | None:
    score = _score_of(report, contract)
    return score.pass_at(1) if score else None


def _cell(report: EvalReport, contract: str) -> str:
    score = _score_of(report, contract)
    if score is None:
        return "-"
    missing = f" (n={score.samples})" if score.samples < report.k else ""
    return f"{_share(score.pass_at(1))} / {_share(score.pass_at(report.k))}{missing}"


def _solved(report: EvalReport) -> str:
    tried = [score for score in report.scores if score.samples]
    return f"{sum(score.passed > 0 for score in tried)} of {len(tried)}"
