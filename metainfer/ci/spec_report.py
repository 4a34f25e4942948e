"""What a change of specs would come to: valid, covered, feasible, at what cost, and which engines it makes anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from metainfer.checkpoint.feasibility import Feasibility, feasibility
from metainfer.ci.actions import Annotation
from metainfer.ci.affected import Change
from metainfer.ci.estimate import Estimate, estimate
from metainfer.ci.places import placed
from metainfer.ckb.facts import Facts
from metainfer.ckb.routing import Gap, coverage, route
from metainfer.errors import MetainferError
from metainfer.forge.markdown import code, inline, table
from metainfer.generate.blueprint import NEEDED_UNITS
from metainfer.spec.document import DocumentError
from metainfer.spec.load import load_named_spec, refuse_unserved

if TYPE_CHECKING:
    from metainfer.checkpoint.facts import ModelFacts
    from metainfer.ckb.store import KnowledgeBase
    from metainfer.progress import Progress
    from metainfer.spec.models import Spec

COMMENT_KEY = "spec-report"
Verdict = Literal["ok", "unknown", "refused", "invalid"]


@dataclass(frozen=True)
class SpecFinding:
    """One spec. `unknown`: valid, and whether it is covered and fits shows once its model is fetched."""

    path: str
    verdict: Verdict
    platform: str = ""
    problems: Sequence[Annotation] = ()
    gaps: Sequence[Gap] = ()
    fits: Feasibility | None = None
    cost: Estimate | None = None
    note: str = ""


@dataclass(frozen=True)
class SpecReport:
    """All specs of a change."""

    specs: Sequence[SpecFinding] = ()
    change: Change | None = None
    other: Sequence[Annotation] = field(default_factory=tuple)

    @property
    def good(self) -> bool:
        """Whether no spec is invalid or refused."""
        return all(one.verdict in ("ok", "unknown") for one in self.specs)

    @property
    def annotations(self) -> list[Annotation]:
        return [*self.other, *(problem for one in self.specs for problem in one.problems)]


@dataclass(frozen=True)
class Examiner:
    """Looks at specs with the base's knowledge. `fetch`: download models whose facts are not known otherwise."""

    root: Path
    knowledge: KnowledgeBase
    cache: Path
    progress: Progress
    fetch: bool = False

    def examine(self, path: str) -> SpecFinding:
        """Everything that can be said of a spec without making its engine. Never raises for what is wrong with it."""
        try:
            spec = load_named_spec(self.root / path)
        except DocumentError as error:
            return SpecFinding(path, "invalid", problems=placed(str(error), path))
        try:
            return self._valid(path, spec)
        except MetainferError as error:
            problems = placed(str(error), path)
            return SpecFinding(path, "refused", spec.target.platform, problems, cost=estimate(spec.generation))

    def _valid(self, path: str, spec: Spec) -> SpecFinding:
        refuse_unserved(spec)
        model = self._facts(spec, path)
        if model is None:
            note = "coverage and memory are known once its model is fetched"
            return SpecFinding(path, "unknown", spec.target.platform, cost=estimate(spec.generation), note=note)
        fits = feasibility(spec, model)
        routing = route(self.knowledge, Facts.from_spec(spec, model))
        generation = spec.generation
        by_model = {c.id for c in routing.contracts if not generation.contracts or c.id in generation.contracts}
        gaps = coverage(routing, NEEDED_UNITS, by_model if generation.backend == "agents" else ())
        problems = [Annotation("error", f"not covered: {gap.unit}: {gap.reason}", path) for gap in gaps]
        if not fits.fits:
            problems.append(Annotation("error", f"does not fit this runner: {fits}", path))
        verdict: Verdict = "refused" if problems else "ok"
        cost = estimate(generation, routing)
        return SpecFinding(path, verdict, spec.target.platform, problems, gaps, fits, cost)

    def _facts(self, spec: Spec, path: str) -> ModelFacts | None:
        """The model's facts: from the cache, or from a source that costs nothing to look at, or fetched."""
        from metainfer.checkpoint.sources import fetch_model, known_model

        base_dir = (self.root / path).parent
        source = spec.model.source
        known = known_model(source, cache=self.cache, base_dir=base_dir)
        if known:
            return known.facts
        local = source.random is not None or source.path is not None
        if not (self.fetch or local):
            return None
        seen: list[ModelFacts] = []
        admit = partial(_look, seen) if local else (lambda facts: None)
        try:
            model = fetch_model(
                source,
                cache=self.cache,
                base_dir=base_dir,
                progress=self.progress,
                spec_path=self.root / path,
                admit=admit,
            )
        except _SeenError:
            return seen[0]
        return model.facts


class _SeenError(MetainferError):
    """The facts are known, and the weights are not needed."""


def _look(seen: list[ModelFacts], facts: ModelFacts) -> None:
    seen.append(facts)
    raise _SeenError


def markdown(report: SpecReport) -> str:
    """The report as a comment: verdict first, then a table, then what is wrong. All text of specs is escaped."""
    wrong = [one for one in report.specs if one.verdict in ("invalid", "refused")]
    if not report.specs:
        head = "**No spec was changed.**"
    elif wrong:
        head = f"**NOT READY: {len(wrong)} of {len(report.specs)} spec(s) cannot be generated as they are.**"
    else:
        head = f"**{len(report.specs)} spec(s) can be generated.**"
    lines = ["### Specs", "", head, ""]
    if report.specs:
        columns = ["spec", "platform", "verdict", "covered", "memory", "model calls, worst case"]
        lines += [*table(columns, [_row(one) for one in report.specs]), ""]
    for one in wrong:
        lines += [f"- {code(one.path)}{_at(problem)}: {inline(problem.message, 600)}" for problem in one.problems[:20]]
    for one in report.specs:
        if one.fits is not None:
            arithmetic = [f"> {inline(line)}  " for line in str(one.fits).splitlines()]
            lines += [
                "",
                f"<details><summary>memory of {inline(one.path)}</summary>",
                "",
                *arithmetic,
                "",
                "</details>",
            ]
    if report.change is not None:
        lines += ["", *_affected(report.change)]
    return "\n".join(lines).rstrip() + "\n"


def _row(one: SpecFinding) -> list[str]:
    units = len(NEEDED_UNITS)
    unknown = one.fits is None
    covered = "?" if unknown else f"{units - len(one.gaps)} of {units} units"
    memory = "?" if one.fits is None else f"{one.fits.needed_bytes / 1e9:.2f} GB"
    verdict = one.verdict if one.verdict in ("ok", "unknown") else f"**{one.verdict}**"
    note = f" ({inline(one.note)})" if one.note else ""
    cost = inline(one.cost.words) if one.cost else "?"
    return [code(one.path), inline(one.platform), verdict + note, covered, memory, cost]


def _at(problem: Annotation) -> str:
    return f", line {problem.line}" if problem.line else ""


def _affected(change: Change) -> list[str]:
    if not change.affected and not change.deleted:
        return ["Merging this makes no engine anew."]
    lines = ["Merging this makes anew:", ""]
    lines += [
        f"- {code(one.engine)}: {inline('; '.join(r.words for r in one.reasons), 400)}" for one in change.affected
    ]
    lines += [f"- {code(engine)}: not made any more, its spec is deleted" for engine in change.deleted]
    return lines
