"""The check's comment: the verdict, what weakens knowledge first of all, then every change and who answers for it."""

from __future__ import annotations

from collections.abc import Sequence

from metainfer.ckb.weakening import Change
from metainfer.forge.markdown import code, inline, table
from metainfer.review.knowledge import KnowledgeChange
from metainfer.review.verdict import State, Verdict

LABEL_CHANGE = "ckb-change"
LABEL_WEAKENED = "ckb-weakened"
MAX_CHARACTERS = 59_000
_MAX_ROWS = 200
_HEADS = {
    State.SUCCESS: "### Knowledge review: passed",
    State.PENDING: "### Knowledge review: waiting",
    State.FAILURE: "### Knowledge review: not passed",
}


def labels(change: KnowledgeChange) -> dict[str, bool]:
    """Which of our labels belong on the pull request."""
    return {LABEL_CHANGE: bool(change.paths), LABEL_WEAKENED: any(finding.is_loud for finding in change.findings)}


def render(change: KnowledgeChange, verdict: Verdict, head: str) -> str:
    """Markdown, at most MAX_CHARACTERS long. Everything from the pull request is escaped."""
    loud = [finding for finding in change.findings if finding.is_loud]
    parts = [
        f"{_HEADS[verdict.state]}\n\n**{inline(verdict.description)}** (head {code(head[:12])})",
        "\n".join(f"- {inline(reason, 600)}" for reason in verdict.reasons),
        _caution(loud),
        _changes([finding for finding in change.findings if not finding.is_loud]),
        _paths(change.paths, verdict),
        _what_to_do(change, verdict),
    ]
    return _bounded([part for part in parts if part])


def plain(change: KnowledgeChange, verdict: Verdict) -> list[str]:
    """The same for a terminal, which shows no Markdown: lines, to be escaped by whoever prints them."""
    lines = [f"{verdict.state}: {verdict.description}", *(f"  {reason}" for reason in verdict.reasons)]
    for finding in change.findings:
        mark = f"!! {finding.kind}: " if finding.is_loud else ""
        lines.append(f"  {mark}{_where(finding)}: {finding.words}")
    return lines


def _caution(loud: Sequence[Change]) -> str:
    if not loud:
        return ""
    kinds: dict[str, int] = {}
    for finding in loud:
        kinds[finding.kind] = kinds.get(finding.kind, 0) + 1
    counted = ", ".join(f"{count} × {kind}" if count > 1 else kind for kind, count in kinds.items())
    weakening = [finding for finding in loud if finding.weakens]
    title = f"THIS WEAKENS KNOWLEDGE: {counted}" if weakening else f"Read this first: {counted}"
    lines = [f"> - **{finding.kind}** — {code(_where(finding))}: {inline(finding.words, 500)}" for finding in loud]
    return "\n".join(["> [!CAUTION]", f"> **{title}.**", ">", *_cut(lines, "> ")])


def _changes(quiet: Sequence[Change]) -> str:
    if not quiet:
        return ""
    lines = [f"- {finding.kind}: {code(_where(finding))}: {inline(finding.words, 400)}" for finding in quiet]
    return "\n".join([f"<details><summary>{len(lines)} other changes</summary>", "", *_cut(lines), "", "</details>"])


def _paths(paths: Sequence[str], verdict: Verdict) -> str:
    if not paths:
        return ""
    rows = []
    for path in paths[:_MAX_ROWS]:
        given, wanted = verdict.approved_by.get(path), verdict.missing.get(path, ())
        who = "approved by " + ", ".join(map(inline, given)) if given else "waits for " + _anyone(wanted)
        rows.append([code(path), who])
    lines = table(["file", "owners"], rows)
    more = [f"\n… and {len(paths) - _MAX_ROWS} more"] if len(paths) > _MAX_ROWS else []
    summary = f"<details><summary>{len(paths)} files below ckb/</summary>"
    return "\n".join([summary, "", *lines, *more, "", "</details>"])


def _what_to_do(change: KnowledgeChange, verdict: Verdict) -> str:
    if not change.paths or verdict.state is State.SUCCESS:
        return ""
    return (
        "A code owner of these files reads the change and approves it: *Files changed*, *Review changes*, *Approve*. "
        "The approval counts for exactly the head above; a new commit needs a new one."
    )


def _anyone(owners: Sequence[str]) -> str:
    return " or ".join(map(inline, owners)) or "**nobody: CODEOWNERS names no owner**"


def _where(finding: Change) -> str:
    return f"ckb/{finding.path}" if finding.path else "ckb"


def _cut(lines: Sequence[str], prefix: str = "") -> list[str]:
    more = [f"{prefix}- … and {len(lines) - _MAX_ROWS} more"] if len(lines) > _MAX_ROWS else []
    return [*lines[:_MAX_ROWS], *more]


def _bounded(parts: Sequence[str]) -> str:
    """Whole parts from the start for as long as there is room; the warning is the last to be shortened."""
    kept: list[str] = []
    room = MAX_CHARACTERS
    for part in parts:
        if len(part) + 2 > room:
            shown = part[: part.rfind("\n", 0, max(0, room - 80))] if "<details>" not in part else ""
            kept.append(shown + "\n\n*… the rest is left out for length; see the files.*")
            break
        kept.append(part)
        room -= len(part) + 2
    return "\n\n".join(kept) + "\n"
