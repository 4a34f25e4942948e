"""A plan in words: for the summary of a step, as annotations, and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from metainfer.ci.actions import Annotation
from metainfer.ci.affected import Change
from metainfer.ci.places import placed
from metainfer.forge.markdown import code, inline, table

_MAX_REASONS = 6


def markdown(change: Change) -> str:
    """What will be made, what not, and why."""
    lines = [f"### {len(change.affected)} engine(s) to make", ""]
    rows = []
    for one in change.affected:
        words = [inline(reason.words) for reason in one.reasons[:_MAX_REASONS]]
        more = len(one.reasons) - len(words)
        rows.append([code(one.engine), code(one.platform), "; ".join(words) + (f"; and {more} more" if more else "")])
    if rows:
        lines += [*table(["engine", "platform", "because"], rows), ""]
    if change.unaffected:
        lines += [f"Not affected: {', '.join(map(code, change.unaffected))}.", ""]
    lines += [
        f"- {code(engine)}: its spec was deleted. Nothing is made; delete `engines/{inline(engine)}` too, and close "
        "its pull request, if there are any."
        for engine in change.deleted
    ]
    lines += [f"- {code(one.spec_path)}: {inline(one.problem)}" for one in change.broken]
    return "\n".join(lines).rstrip() + "\n"


def remarks(change: Change) -> list[Annotation]:
    """What is wrong with specs, at their lines."""
    return [remark for one in change.broken for remark in placed(one.problem, one.spec_path)]


def as_data(change: Change, jobs: Sequence[Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """The plan for programs."""
    return {**asdict(change), "chunks": [{"include": list(chunk)} for chunk in jobs]}
