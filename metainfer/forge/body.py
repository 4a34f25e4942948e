"""The pull request's body: verdict first, then the evidence in tables, and never longer than a forge accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from metainfer.forge.bench_table import bench_remarks, bench_table
from metainfer.forge.evidence import REQUIRED_GATES
from metainfer.forge.markdown import block, code, fence, inline, table
from metainfer.forge.objections import OBJECTIONS, objections_table
from metainfer.forge.optimise_table import optimise_lines

MAX_CHARACTERS = 59_000
"""Leaves room for the hidden marker and for a line about an earlier pull request below 60,000."""
_BACKENDS = {
    "specializer": "folded from reviewed exemplars by the specializer; no language model wrote them",
    "agents": "written by a language model from their contracts",
    "override": "a person's own code, named in the spec",
    "submitted": "submitted by an outside author or agent",
}
_REFERENCES = {"none": "no code of ours", "exemplars": "the exemplars"}
_MAX_FIGURES = 8


@dataclass(frozen=True, slots=True)
class KnowledgeChange:
    """One proposed change of the knowledge base, in words. `weakens`: it loosens a check or widens a tolerance."""

    path: str
    words: str
    weakens: bool = False
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class BodyParts:
    """What a body is made from. Everything in it is treated as untrusted text."""

    manifest: Mapping[str, Any]
    """manifest.json, as data."""
    evidence: Mapping[str, Any]
    """evidence.json, as data."""
    knowledge: Sequence[KnowledgeChange] = ()
    commands: Sequence[str] = ()
    """Shell commands that make the same engine and verdict again."""
    notes: Sequence[str] = ()
    """Remarks that belong beside the verdict, e.g. that gates ran without a sandbox."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Title → text; shown folded, and the first to be cut."""


@dataclass(frozen=True, slots=True)
class _Section:
    """A piece that may lose lines from its end. `rank` 0 is the last to be cut."""

    rank: int
    title: str
    head: str
    lines: list[str]
    tail: str = ""


def render_body(parts: BodyParts, limit: int = MAX_CHARACTERS) -> str:
    """The body in Markdown, at most `limit` characters."""
    sections = [
        _verdict(parts),
        _weakened(parts.knowledge),
        _gates(parts.evidence),
        _findings(parts.evidence),
        *_bench(parts.evidence.get("bench")),
        _optimisation(parts.evidence),
        _objections(parts.manifest),
        _knowledge(parts.knowledge),
        _provenance(parts.manifest),
        _reproduction(parts),
        *(_log(title, text) for title, text in parts.logs.items()),
    ]
    return _fit([section for section in sections if section and section.lines], limit)


def is_green(evidence: Mapping[str, Any]) -> bool:
    """Whether every gate that a merge demands has a passed report, and none is red."""
    verdicts = {str(report.get("gate")): report.get("verdict") for report in _dicts(evidence.get("gates"))}
    return all(verdicts.get(gate) == "passed" for gate in REQUIRED_GATES) and set(verdicts.values()) == {"passed"}


def _verdict(parts: BodyParts) -> _Section:
    reports = _dicts(parts.evidence.get("gates"))
    given = {str(report.get("gate")) for report in reports}
    red = [str(report.get("gate")) for report in reports if report.get("verdict") != "passed"]
    red += [f"{gate} (no report)" for gate in REQUIRED_GATES if gate not in given]
    verdict = f"all {len(reports)} gates passed" if not red else f"NOT READY: {', '.join(map(inline, red))}"
    spec = parts.manifest.get("spec")
    model = _dict(parts.manifest.get("model"))
    lines = [
        f"**Verdict: {verdict}.**",
        "",
        f"Engine {code(parts.manifest.get('engine', '?'))}, "
        f"{inline(parts.manifest.get('code_lines', '?'))} lines of code, "
        f"for {_point(_dict(spec), _dict(parts.manifest.get('facts')))}; "
        f"model {code(model.get('digest', '?'))}, licence {inline(model.get('licence', '?'))}.",
        *(f"- {inline(note)}" for note in parts.notes),
    ]
    return _Section(0, "verdict", "", lines)


def _point(spec: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    workload = _dict(spec.get("workload"))
    words = [
        inline(facts.get("platform", "an unnamed platform")),
        f"{inline(facts['weight_dtype'])} weights" if "weight_dtype" in facts else "",
        f"{inline(workload['max_concurrency'])} requests at once" if "max_concurrency" in workload else "",
        f"{inline(workload['max_model_len'])} tokens each" if "max_model_len" in workload else "",
    ]
    return ", ".join(word for word in words if word)


def _weakened(changes: Sequence[KnowledgeChange]) -> _Section | None:
    weak = [change for change in changes if change.weakens]
    if not weak:
        return None
    head = f"> [!CAUTION]\n> **{len(weak)} proposed change(s) WEAKEN a check or widen a tolerance.** Read these:\n>"
    return _Section(0, "weakened checks", head, [f"> - {code(c.path)}: {inline(c.words)}" for c in weak])


def _gates(evidence: Mapping[str, Any]) -> _Section:
    rows = []
    for report in _dicts(evidence.get("gates")):
        figures = list(_dict(report.get("figures")).items())
        shown = ", ".join(f"{inline(name, 40)} {inline(value, 60)}" for name, value in figures[:_MAX_FIGURES])
        more = f", and {len(figures) - _MAX_FIGURES} more" if len(figures) > _MAX_FIGURES else ""
        verdict = str(report.get("verdict"))
        rows.append(
            [
                inline(report.get("gate", "?"), 40),
                "passed" if verdict == "passed" else f"**{inline(verdict, 20)}**",
                shown + more,
                f"{inline(report.get('seconds', '?'), 12)} s",
            ]
        )
    head, lines = _split(table(["gate", "verdict", "figures", "took"], rows))
    return _Section(1, "gates", f"### Gates\n\n{head}", lines)


def _findings(evidence: Mapping[str, Any]) -> _Section:
    lines = []
    for report in _dicts(evidence.get("gates")):
        if report.get("verdict") == "passed":
            continue
        for finding in _dicts(report.get("findings")):
            where = f" ({inline(finding['where'], 120)})" if finding.get("where") else ""
            figures = _dict(finding.get("figures")).items()
            numbers = "; ".join(f"{inline(k, 40)} {inline(v, 60)}" for k, v in list(figures)[:_MAX_FIGURES])
            lines.append(
                f"- **{inline(report.get('gate', '?'), 40)}**: {inline(finding.get('message', ''))}{where}"
                + (f" — {numbers}" if numbers else "")
            )
        if report.get("reproduce"):
            lines.append(f"  - reproduce: {code(report['reproduce'])}")
    return _Section(2, "findings", "### What failed\n", lines)


def _bench(bench: object) -> list[_Section]:
    data = _dict(bench)
    head, lines = _split(bench_table(data))
    remarks = bench_remarks(data)
    return [
        _Section(3, "benchmark", f"### Benchmark\n\n{head}", lines),
        _Section(3, "benchmark remarks", "", remarks if lines else ["No benchmark was run.", *remarks]),
    ]


def _objections(manifest: Mapping[str, Any]) -> _Section | None:
    given = _dicts(_dict(manifest.get("agent")).get("objections"))
    head, lines = _split(objections_table(given))
    return _Section(5, "objections", f"{OBJECTIONS}\n\n{head}", lines) if given else None


def _optimisation(evidence: Mapping[str, Any]) -> _Section | None:
    lines = optimise_lines(_dict(evidence.get("optimise")))
    return _Section(3, "optimisation", "### Optimisation\n", lines) if lines else None


def _knowledge(changes: Sequence[KnowledgeChange]) -> _Section | None:
    if not changes:
        return _Section(4, "knowledge", "### Knowledge\n", ["No change of the knowledge base is proposed."])
    head = "### Knowledge\n\nIn its own commit; it serves the next generation and needs a code owner's approval.\n"
    lines = []
    for change in sorted(changes, key=lambda c: not c.weakens):
        mark = "**WEAKENS A CHECK** — " if change.weakens else ""
        lines.append(f"- {mark}{code(change.path)}: {inline(change.words, 600)}")
        if change.evidence:
            lines.append(f"  - evidence: {inline(change.evidence, 600)}")
    return _Section(2, "knowledge", head, lines)


def _provenance(manifest: Mapping[str, Any]) -> _Section:
    units = _dicts(manifest.get("units"))
    counts: dict[str, int] = {}
    for unit in units:
        counts[str(unit.get("backend"))] = counts.get(str(unit.get("backend")), 0) + 1
    words = [f"{count} unit(s) {_BACKENDS.get(name, 'made by ' + inline(name))}" for name, count in counts.items()]
    agent = _dict(manifest.get("agent"))
    if agent:
        settings = _dict(agent.get("settings"))
        reference = str(settings.get("reference"))
        saw = _REFERENCES.get(reference, f"the source {code(reference.removeprefix('source:'))}")
        words.append(
            f"model {code(settings.get('model', '?'))}, which saw {saw}, "
            f"{inline(agent.get('tokens', '?'))} tokens, {inline(agent.get('cost_usd', '?'))} USD"
        )
        if fell_back := agent.get("fell_back"):
            words.append(f"it could not write {', '.join(map(code, fell_back))}: their exemplars stand there")
        if left := agent.get("left"):
            words.append(f"its plan left {', '.join(map(code, left))} to their exemplars")
        if unread := agent.get("unreviewed"):
            words.append(f"no reviewer has read {', '.join(map(code, unread))}")
        if optimised := agent.get("optimised"):
            words.append(f"it made {', '.join(map(code, optimised))} measurably faster")
    generator = _dict(manifest.get("generator"))
    rows = [
        [code(unit.get("name", "?")), inline(unit.get("contract", "?")), inline(unit.get("contract_version", "?")),
         inline(unit.get("backend", "?")), code(unit.get("origin", ""))]
        for unit in units
    ]  # fmt: skip
    head, lines = _split(table(["unit", "contract", "version", "made by", "from"], rows))
    intro = (
        f"### Provenance\n\nInputs {code(manifest.get('input_hash', '?'))}, "
        f"generator {inline(generator.get('version', '?'))}. "
        f"{'; '.join(words)}.\n\n<details><summary>{len(rows)} units</summary>\n\n{head}"
    )
    return _Section(4, "provenance", intro, lines, "\n</details>")


def _reproduction(parts: BodyParts) -> _Section | None:
    gates = [str(report["reproduce"]) for report in _dicts(parts.evidence.get("gates")) if report.get("reproduce")]
    commands = block([*parts.commands, *gates])
    if not commands:
        return None
    marks = fence(commands)
    return _Section(3, "reproduction", f"### Reproduce\n\n{marks}sh", commands, marks)


def _log(title: str, text: str) -> _Section:
    lines = block(text.splitlines())
    marks = fence(lines)
    return _Section(
        6, "logs", f"<details><summary>{inline(title, 80)}</summary>\n\n{marks}text", lines, f"{marks}\n\n</details>"
    )


def _fit(sections: Sequence[_Section], limit: int) -> str:
    """Give room by rank; a section that gets too little loses lines from its end and says how many."""
    note = "\n\n*Left out for length:* " + ", ".join(dict.fromkeys(s.title for s in sections)) + "."
    room = limit - len(note)
    kept: dict[int, str] = {}
    dropped = []
    for index, section in sorted(enumerate(sections), key=lambda pair: pair[1].rank):
        text = _cut(section, room)
        if text is None:
            dropped.append(section.title)
            continue
        kept[index] = text
        room -= len(text) + 2
    body = "\n\n".join(kept[index] for index in sorted(kept))
    if dropped:
        body += "\n\n*Left out for length:* " + ", ".join(dict.fromkeys(dropped)) + "."
    return body + "\n"


def _cut(section: _Section, room: int) -> str | None:
    """The section within `room` characters; None if not even its first line fits."""

    def text(count: int) -> str:
        left = len(section.lines) - count
        more = [f"… {left} more line(s) left out" if section.tail else f"\n*… {left} more left out*"] if left else []
        head, tail = ([part] if part else [] for part in (section.head, section.tail))
        return "\n".join([*head, *section.lines[:count], *more, *tail])

    whole = text(len(section.lines))
    if len(whole) <= room:
        return whole
    low, high = 0, len(section.lines) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(text(middle)) <= room else (low, middle - 1)
    return text(low) if low and len(text(low)) <= room else None


def _split(lines: Sequence[str]) -> tuple[str, list[str]]:
    """A table's two head lines as one text, and its rows."""
    return "\n".join(lines[:2]), list(lines[2:])


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []
