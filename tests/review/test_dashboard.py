"""What the dashboard says: trouble first, nothing that could not be read passed off as fine, no text obeyed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from metainfer.review.dashboard.facts import EngineFacts, Facts, ReviewFacts, RunFacts
from metainfer.review.dashboard.render import MARKER, MAX_CHARACTERS, render, says_the_same

NOW = datetime(2026, 12, 2, 3, 17, tzinfo=UTC)
GOOD = RunFacts("generate.yml", "2026-12-01T10:00:00Z", "success", "https://x.org/1", "2026-12-01T10:05:00Z")
ENGINE = EngineFacts(
    "tiny",
    True,
    "v0.2.0",
    "green",
    "2026-11-30T00:00:00Z",
    1483,
    "2.72 (2.58 – 3.01) × transformers",
    "coder",
    1.5,
    5.0,
)
FACTS = Facts([ENGINE], [], [GOOD])


def test_a_quiet_day() -> None:
    text = render(FACTS, NOW)
    assert "| `tiny` | `v0.2.0` | green | 2026-11-30 | 1483 | 2.72 (2.58 – 3.01) × transformers |" in text
    assert "| `generate.yml` | [2026-12-01 10:00](https://x.org/1), success | 2026-12-01 10:05 |" in text
    assert "| `tiny` | coder | 1.50 USD | 0 | 5.00 USD |" in text
    assert "[!WARNING]" not in text
    assert text.endswith(f"{MARKER}\n")


def test_it_says_until_when_it_can_be_believed() -> None:
    assert "*Updated 2026-12-02 03:17 UTC.*" in render(FACTS, NOW)
    assert "If it is later than 2026-12-02 09:17 UTC, nothing keeps it current" in render(FACTS, NOW)


def test_a_failed_run_stands_first_with_its_last_success() -> None:
    bad = replace(GOOD, outcome="failure")
    text = render(replace(FACTS, runs=[bad]), NOW)
    assert text.startswith(
        "> [!WARNING]\n> - `generate.yml` failed 2026-12-01 10:00; it last succeeded 2026-12-01 10:05."
    )


def test_the_run_that_writes_it_says_how_it_went() -> None:
    text = render(replace(FACTS, outcome="failure", run_url="https://x.org/9"), NOW)
    assert "ended with **failure** ([log](https://x.org/9))" in text.splitlines()[1]
    assert "ended with" not in render(replace(FACTS, outcome="success"), NOW)


def test_runs_that_cannot_be_read_are_not_called_fine() -> None:
    text = render(replace(FACTS, runs=[RunFacts("nightly.yml", unread=True), RunFacts("release.yml")]), NOW)
    assert "| `nightly.yml` | cannot be read with this token |" in text
    assert "| `release.yml` | never | never, as far as is known |" in text


def test_knowledge_that_waits_is_listed_and_weakened_knowledge_is_a_warning() -> None:
    reviews = [
        ReviewFacts(4, "Know more", "pending", "waits for @org/knowledge: ckb/a", False),
        ReviewFacts(5, "Loosen", "pending", "waits for @alice: ckb/b", True),
        ReviewFacts(6, "Done", "success", "approved by @alice at abc", True),
    ]
    text = render(replace(FACTS, reviews=reviews), NOW)
    assert text.startswith("> [!WARNING]\n> - #5 would **weaken knowledge**")
    assert "- #4 Know more: waits for @&#8203;org/knowledge" in text
    assert "#6" not in text


def test_an_engine_without_evidence_spec_or_anything() -> None:
    bare = EngineFacts("a", True)
    gone = replace(ENGINE, name="b", spec=False, verdict="red")
    waiting = EngineFacts("c", True, pull=7, pull_verdict="green")
    text = render(replace(FACTS, engines=[bare, gone, waiting]), NOW)
    assert "| `a` |   | not made yet |" in text
    assert "| `b` | `v0.2.0` | **red**, its spec is gone |" in text
    assert "| #7, green |" in text
    assert "None, and no spec." in render(replace(FACTS, engines=[]), NOW)


def test_a_repository_without_models_says_that_none_was_paid() -> None:
    free = replace(ENGINE, model="", spent_usd=0, budget_usd=0)
    assert "No language model was paid" in render(replace(FACTS, engines=[free]), NOW)


def test_two_bodies_that_differ_in_time_alone_say_the_same() -> None:
    later = render(FACTS, NOW + timedelta(hours=2))
    assert says_the_same(render(FACTS, NOW), later)
    assert says_the_same(render(FACTS, NOW).replace("\n", "\r\n"), later)
    assert not says_the_same(render(FACTS, NOW), render(replace(FACTS, engines=[]), NOW))


def test_names_and_titles_are_text_and_the_marker_is_last_and_once() -> None:
    hostile = f"@all {MARKER} | x\n# y <b>"
    engine = replace(ENGINE, name=hostile, model=hostile, release=hostile, verdict=hostile)
    review = ReviewFacts(1, hostile, "pending", hostile, False)
    run = RunFacts("g.yml", hostile, hostile, "javascript:alert(1)", hostile)
    text = render(Facts([engine], [review], [run], hostile, "https://x) [y](z"), NOW)
    outside = "".join(text.split("`")[::2])
    assert text.count(MARKER) == 1
    assert text.endswith(f"{MARKER}\n")
    assert "@all" not in outside
    assert "<b>" not in outside
    assert "javascript" not in text
    assert not any(line.startswith("# y") for line in text.splitlines())


def test_however_many_engines_it_fits() -> None:
    many = [replace(ENGINE, name=f"engine-{n}-" + "x" * 80) for n in range(1000)]
    text = render(replace(FACTS, engines=many), NOW)
    assert len(text) <= MAX_CHARACTERS + 200
    assert text.endswith(f"{MARKER}\n")
