"""The comment: loud where knowledge is weakened, harmless whatever a pull request writes, and never too long."""

from __future__ import annotations

from metainfer.ckb.kinds import Kind
from metainfer.ckb.weakening import Change
from metainfer.review.knowledge import KnowledgeChange
from metainfer.review.report import MAX_CHARACTERS, labels, plain, render
from metainfer.review.verdict import State, Verdict

HEAD = "a" * 40
PENDING = Verdict(State.PENDING, "waits for @alice: ckb/a", ("waits for @alice: ckb/a",), {"ckb/a": ("@alice",)})
RAISED = Change("family/a/check.py", "check_a: 1e-05 becomes 0.001, a looser bound", True, Kind.TOLERANCE_RAISED)


def change(*findings: Change, paths: tuple[str, ...] = ("ckb/a",)) -> KnowledgeChange:
    return KnowledgeChange("c" * 40, paths, findings, ())


def test_a_raised_tolerance_is_called_out_before_everything_else() -> None:
    text = render(change(Change("b", "title is revised"), RAISED), PENDING, HEAD)
    assert "> [!CAUTION]\n> **THIS WEAKENS KNOWLEDGE: tolerance raised.**" in text
    assert text.index("tolerance raised") < text.index("title is revised")
    assert labels(change(RAISED)) == {"ckb-change": True, "ckb-weakened": True}


def test_a_version_that_was_not_raised_is_called_out_without_being_called_weaker() -> None:
    quiet = Change("family/a/contract.yaml", "is changed", kind=Kind.VERSION_NOT_RAISED)
    text = render(change(quiet), PENDING, HEAD)
    assert "**Read this first: version not raised.**" in text
    assert "WEAKENS" not in text


def test_without_knowledge_there_are_no_labels() -> None:
    assert labels(change(paths=())) == {"ckb-change": False, "ckb-weakened": False}


def test_nothing_that_a_pull_request_says_is_more_than_text() -> None:
    hostile = "@everyone <!-- x --> `` | ::error:: \u202e [link](http://x) </details> #1 \n> [!NOTE]\n# Approved"
    findings = (Change(hostile, hostile, True, Kind.CHECK_REMOVED), Change("q", hostile))
    verdict = Verdict(State.PENDING, hostile, (hostile,), {hostile: ("@alice",)}, {})
    text = render(change(*findings, paths=(hostile,)), verdict, HEAD)
    outside_code = "".join(text.split("`")[::2])
    assert "@everyone" not in outside_code
    assert "<!--" not in outside_code
    assert "</details> #1" not in outside_code
    assert "\u202e" not in text
    assert not any(line.startswith(("# Approved", "> [!NOTE]", "::")) for line in text.splitlines())


def test_however_much_there_is_the_comment_fits_and_the_warning_is_in_it() -> None:
    many = [Change(f"{n}/" + "x" * 200, "y" * 500, True, Kind.CHECK_REMOVED) for n in range(400)]
    text = render(change(RAISED, *many, paths=tuple(f"ckb/{n}" for n in range(5000))), PENDING, HEAD)
    assert len(text) <= MAX_CHARACTERS + 100
    assert "tolerance raised" in text
    assert "left out" in text


def test_a_terminal_is_told_the_same_without_markdown() -> None:
    assert plain(change(RAISED), PENDING)[-1].startswith("  !! tolerance raised: ckb/family/a/check.py")
