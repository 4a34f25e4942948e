"""The pull request's body: what a reviewer must see first, and what an untrusted report must not be able to do."""

from __future__ import annotations

import html
import re
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from metainfer.bench.environment import Noise
from metainfer.bench.metrics import Spread
from metainfer.bench.report import BenchReport, GoalResult, Memory, Missing, Ratio, SubjectReport
from metainfer.bench.subject import SubjectInfo
from metainfer.forge.body import MAX_CHARACTERS, BodyParts, KnowledgeChange, is_green, render_body
from metainfer.forge.evidence import examine
from metainfer.forge.markdown import block, code, fence, inline
from metainfer.forge.markers import read_marker, with_marker
from tests.forge.engines import ENGINE, engine_files, evidence, manifest

NASTY = (
    "<!-- hidden --> @octocat closes #12 fixes GH-7 ::error::x ##[add-mask]y `code` [a](https://e.org) "
    "![i](http://e.org/p) www.e.org | cell \u202ereversed\u202c zero\u200bwidth "
    "\x1b[31mred\x07 <img src=x> </details> <script>"
)


def body(verdicts: dict[str, str] | None = None, **parts: Any) -> str:
    data = manifest({}).model_dump(mode="json", by_alias=True)
    return render_body(BodyParts(**{"manifest": data, "evidence": evidence(verdicts=verdicts), **parts}))


def test_the_first_line_is_the_verdict() -> None:
    assert body().splitlines()[0] == "**Verdict: all 5 gates passed.**"
    assert body({"numerics": "failed"}).splitlines()[0] == "**Verdict: NOT READY: numerics.**"
    assert body({"unit": "absent"}).splitlines()[0] == "**Verdict: NOT READY: unit (no report).**"


def test_the_verdict_agrees_with_what_a_merge_demands() -> None:
    for verdicts in ({}, {"unit": "failed"}, {"unit": "absent"}, {"extra": "failed"}, {"extra": "passed"}):
        green = not examine(ENGINE, engine_files(verdicts=verdicts)).problems
        assert is_green(evidence(verdicts=verdicts)) == green
        assert ("all" in body(verdicts).splitlines()[0]) == green


def test_every_gate_has_a_row_with_its_figures() -> None:
    report = evidence()
    report["gates"][3]["figures"] = {"kl_mean": 1.5e-7, "prompts": 16, "exact": True}
    text = body(evidence=report)
    row = next(line for line in text.splitlines() if line.startswith("| numerics"))
    assert row == r"| numerics | passed | kl\_mean 1.5e-07, prompts 16, exact yes | 0.1 s |"


def test_open_objections_are_a_table_of_text_that_does_nothing() -> None:
    data = manifest({}).model_dump(mode="json", by_alias=True)
    one = {"contract": "family/rmsnorm", "clause": "I1", "promise": "x is not changed.", "line": 12, "why": NASTY}
    data["agent"] = {"settings": {}, "objections": [one] * 2000, "left": ["family/rope"], "unreviewed": ["a/b"]}
    text = body(manifest=data)
    assert "### Objections of the reviewer" not in body()
    rows = [line for line in text.splitlines() if line.startswith("| family/rmsnorm | 12 | I1: x is not changed. | ")]
    assert rows
    assert all(mark not in rows[0] for mark in ("<!--", "@octocat", "<script", "::error::", "\u202e", "\u200b", "#12"))
    assert re.search(r"\d+ more left out", text)
    assert len(text) <= MAX_CHARACTERS
    assert "its plan left `family/rope` to their exemplars; no reviewer has read `a/b`" in text


def test_findings_are_shown_with_the_command_that_reproduces_them() -> None:
    report = evidence(verdicts={"unit": "failed"})
    report["gates"][2]["findings"] = [{"message": "RMSNorm is off", "figures": {"error": 0.5}, "where": "layers.py:3"}]
    text = body(evidence=report)
    assert "- **unit**: RMSNorm is off (layers.py:3) — error 0.5" in text
    assert "reproduce: `metainfer gate unit`" in text


def spread(median: float) -> Spread:
    return Spread.of([median - 1, median, median + 1])


def bench_data() -> dict[str, Any]:
    """The parts of a real report that a body shows."""

    def subject(name: str, rate: float) -> SubjectReport:
        info = SubjectInfo(
            name=name, kind="engine", version="1", weight_dtype="bf16", kv_dtype="fp32", threads=2, mode="over HTTP"
        )
        memory = Memory(peak_rss_bytes=1_500_000_000, private_bytes=1)
        return SubjectReport(info=info, start_s=1.0, figures={"decode_tokens_per_s": spread(rate)}, memory=memory)

    records: dict[str, Any] = {
        "subjects": [subject("tiny-cpu", 8.0), subject("transformers", 3.0)],
        "ratios": [Ratio(figure="decode_tokens_per_s", peer="transformers", ratio=spread(2.5))],
        "goals": [GoalResult(goal="decode_mbu", wanted=0.8, at_least=True, measured=0.7, met=False)],
        "missing": [Missing(name="vllm", reason="not installed")],
    }
    plain = {name: [record.model_dump(mode="json") for record in listed] for name, listed in records.items()}
    return {
        **plain,
        "warnings": ["the machine was busy"],
        "noise": Noise(steal_share=0.0, foreign_share=0.2).model_dump(mode="json"),
        "repeats_done": 3,
    }


def test_the_report_has_the_fields_that_a_body_shows() -> None:
    assert bench_data().keys() <= BenchReport.model_fields.keys()


def test_benchmarks_compare_subjects_and_show_their_spread() -> None:
    text = body(evidence=evidence() | {"bench": bench_data()})
    assert "| figure | tiny-cpu | transformers |" in text
    assert "| decode, tokens/s | 8 (7 – 9) | 3 (2 – 4) |" in text
    assert "| peak memory, MB | 1500 | 1500 |" in text
    assert "- decode: 2.5 (1.5 – 3.5) times transformers" in text


def test_doubts_about_a_benchmark_come_first_and_a_missed_goal_is_plain() -> None:
    text = body(evidence=evidence() | {"bench": bench_data()})
    assert text.index("**warning:** the machine was busy") < text.index("decode: 2.5")
    assert r"goal decode\_mbu at least 0.8: measured 0.7, **NOT MET**" in text
    assert "no figures for vllm: not installed" in text
    assert "No benchmark was run." in body()


def test_a_weakened_check_is_loud_and_comes_before_the_gates() -> None:
    changes = [
        KnowledgeChange("ckb/a/contract.yaml", "a note"),
        KnowledgeChange("ckb/b/check.py", "1e-5 → 1e-3", weakens=True),
    ]
    text = body(knowledge=changes)
    assert text.index("WEAKEN a check") < text.index("### Gates")
    assert text.count("WEAKENS A CHECK") == 1


def test_specializer_output_is_not_called_a_models_work() -> None:
    assert "no language model wrote them" in body()
    assert "written by a language model" not in body()
    units = [dict(manifest({}).units[0].model_dump(), backend="agents")]
    data = {
        **manifest({}).model_dump(mode="json"),
        "units": units,
        "agent": {"settings": {"model": "m-1", "reference": "none"}, "tokens": 5, "cost_usd": 0.1},
    }
    text = body(manifest=data)
    assert "written by a language model" in text
    assert "model `m-1`" in text


def test_an_untrusted_report_cannot_act() -> None:
    report = evidence(verdicts={"unit": "failed", NASTY: "failed"})
    report["gates"][2]["findings"] = [{"message": NASTY, "figures": {NASTY: NASTY}, "where": NASTY}]
    report["bench"] = bench_data() | {"warnings": [NASTY], "missing": [{"name": NASTY, "reason": NASTY}]}
    report["bench"]["subjects"][1]["info"] = dict.fromkeys(report["bench"]["subjects"][1]["info"], NASTY)
    text = body(
        evidence=report,
        knowledge=[KnowledgeChange(NASTY, NASTY, True, NASTY)],
        notes=[NASTY],
        commands=[NASTY],
        logs={NASTY: f"::set-output name=x::y\n```\n{NASTY}"},
    )
    outside = re.sub(r"(?ms)^(`{3,})\w*$.*?^\1$", "", text)  # neither mentions nor HTML work in fenced blocks
    outside = re.sub(r"`[^`\n]+`", "", outside.replace("\\`", ""))  # nor in inline code
    assert "<!--" not in outside
    assert set(re.findall(r"</?\w+", outside)) <= {"<details", "</details", "<summary", "</summary"}
    shown = html.unescape(outside)
    assert not re.search(r"@\w|#\d|(?i:gh-\d)|://|(?i:www\.)", shown)
    assert not re.search(r"(?m)^\s*::", text)
    assert "##[" not in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]", text)
    for row in re.findall(r"(?m)^\| .*$", outside):
        assert len(re.findall(r"(?<!\\)\|", row)) in (4, 5, 6)


def test_the_marker_survives_a_hostile_body() -> None:
    text = with_marker(body(notes=['<!-- metainfer:{"engine": "x"} -->']), ENGINE, "sha256:aa")
    assert read_marker(text) == {"engine": ENGINE, "input_hash": "sha256:aa"}


def test_a_fence_is_longer_than_any_run_of_backticks_within() -> None:
    assert fence(["a ```` b"]) == "`````"


def test_logs_are_cut_before_findings_and_findings_before_the_verdict() -> None:
    report = evidence(verdicts={"unit": "failed"})
    report["gates"][2]["findings"] = [{"message": f"finding {n} " + "x" * 200} for n in range(150)]
    text = body(evidence=report, logs={"engine log": "line\n" * 50_000})
    assert len(text) <= MAX_CHARACTERS
    assert "finding 149" in text
    assert "more line(s) left out" in text
    assert text.rstrip().endswith("</details>")
    report["gates"][2]["findings"] *= 10
    text = body(evidence=report, logs={"engine log": "line\n" * 50_000})
    assert len(text) <= MAX_CHARACTERS
    assert "Left out for length:" in text
    assert "Verdict: NOT READY: unit" in text
    assert "### Gates" in text


_text = st.text(max_size=400)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _text,
    lambda child: st.lists(child, max_size=4) | st.dictionaries(_text, child, max_size=4),
    max_leaves=12,
)
_keys = st.sampled_from(["spec", "model", "units", "facts", "agent", "engine", "lines"])


@settings(max_examples=60, deadline=None)
@given(
    manifest=st.dictionaries(_keys, _json),
    gates=_json,
    bench=_json,
    logs=st.dictionaries(_text, st.text(max_size=3000), max_size=3),
    times=st.integers(1, 400),
)
def test_any_report_gives_a_bounded_body(manifest: Any, gates: Any, bench: Any, logs: Any, times: int) -> None:
    many = gates * times if isinstance(gates, list) else [gates] * times
    text = render_body(BodyParts(manifest, {"gates": many, "bench": bench}, logs=logs))
    assert len(text) <= MAX_CHARACTERS
    assert "Verdict: NOT READY" in text
    assert "<!--" not in text


@settings(max_examples=400, deadline=None)
@example(":::")
@example("_www.e.org")
@given(st.text(alphabet=st.sampled_from("@#:/`\\|<>!-[]()&;w.gGhH1a \u200b\u2060\n\t*_"), max_size=60))
def test_escaped_text_stays_on_its_line_and_in_its_cell(text: str) -> None:
    for shown in (inline(text), code(text)):
        assert "\n" not in shown
        assert not re.search(r"(?<!\\)(?:\\\\)*\|", shown)
    assert not re.search(r"[<>]", inline(text))
    assert not re.search(r"@\w|#\d|::|://|(?i:gh-\d)|(?i:www\.)", html.unescape(inline(text)))
    assert len(block([text])) == 1
