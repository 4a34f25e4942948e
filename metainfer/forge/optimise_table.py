"""The report of an optimisation as Markdown: what was hot, what was tried, what was kept, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metainfer.forge.markdown import code, inline

_MAX_REASON = 400


def optimise_lines(report: Mapping[str, Any]) -> list[str]:
    """List items; empty where there is no report.

    `report` is the data of a `metainfer.pipeline.optimise_report.OptimiseReport`, read as untrusted.
    """
    if not report:
        return []
    lines = [f"- {inline(report['note'], _MAX_REASON)}"] if report.get("note") else []
    for tried in _dicts(report.get("tried")):
        share = tried.get("share")
        heat = f", {share:.0%} of the time" if isinstance(share, float) else ""
        trials = _dicts(tried.get("trials"))
        lines.append(f"- {code(tried.get('contract', '?'))}{heat}: {_verdict(tried, trials)}")
        for trial in trials:
            verdict = inline(trial.get("verdict", "?"), 20)
            which = f"round {inline(trial.get('round', '?'))}, sample {inline(trial.get('sample', '?'))}"
            lines.append(f"  - {which}: **{verdict}**: {inline(trial.get('reason', ''), _MAX_REASON)}")
    if any(_dicts(tried.get("trials")) for tried in _dicts(report.get("tried"))):
        lines.append(f"- how this was measured: {inline(report.get('rule', ''), 600)}")
    return lines


def _verdict(tried: Mapping[str, Any], trials: list[Mapping[str, Any]]) -> str:
    attempts = f"{inline(tried.get('attempts', '?'))} answer(s), of which {len(trials)} held the contract's checks"
    if any(trial.get("verdict") == "kept" for trial in trials):
        return f"**faster**; {attempts}"
    why = tried.get("stopped") or (tried.get("finding") if not trials else "")
    return f"stays as it was; {attempts}" + (f"; {inline(why, _MAX_REASON)}" if why else "")


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []
