"""The pull request's body: what a reviewer must see first, and what an untrusted report must not be able to do."""

from __future__ import annotations

import html
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_findings_are_shown_with_the_command_that_reproduces_them() -> None:
    report = evidence(verdicts={"unit": "failed"})
    report["gates"][2]["findings"] = [{"message": "RMSNorm is off", "figures": {"error": 0.5}, "where": "layers.py:3"}]
    text = body(evidence=report)
    assert "- **unit**: RMSNorm is off (layers.py:3) — error 0.5" in text
    assert "reproduce: `metainfer gate unit`" in text


def test_benchmarks_show_their_spread() -> None:
    report = evidence()
    report["bench"] = {
        "decode": {"tokens_per_s": {"median": 8.2, "min": 8.0, "max": 8.4, "samples": [8.0, 8.2, 8.4]}},
        "peers": [{"name": "transformers", "tpot_ms": {"mean": 300.0, "spread": 4.0}}],
    }
    text = body(evidence=report)
    assert r"| decode tokens\_per\_s | 8.2 | 8 … 8.4 |" in text
    assert r"| peers transformers tpot\_ms | 300 | ± 4 |" in text


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
        "agent": {"model": "m-1", "tokens": 5, "cost_usd": 0.1},
    }
    text = body(manifest=data)
    assert "written by a language model" in text
    assert "model `m-1`" in text


def test_an_untrusted_report_cannot_act() -> None:
    report = evidence(verdicts={"unit": "failed", NASTY: "failed"})
    report["gates"][2]["findings"] = [{"message": NASTY, "figures": {NASTY: NASTY}, "where": NASTY}]
    report["bench"] = {NASTY[:100]: {"median": 1.0}}
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


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from("@#:/`\\|<>!-[]()&;w.gGhH1a \u200b\u2060\n\t*_"), max_size=60))
def test_escaped_text_stays_on_its_line_and_in_its_cell(text: str) -> None:
    for shown in (inline(text), code(text)):
        assert "\n" not in shown
        assert not re.search(r"(?<!\\)(?:\\\\)*\|", shown)
    assert not re.search(r"[<>]", inline(text))
    assert not re.search(r"@\w|#\d|::|://|(?i:gh-\d)|(?i:www\.)", html.unescape(inline(text)))
    assert len(block([text])) == 1
