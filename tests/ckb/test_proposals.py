"""Proposals change what they say and nothing else, whole or not at all, and say what they weaken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metainfer.ckb import proposals
from metainfer.ckb.deltas import Proposal
from metainfer.ckb.editing import append_item, append_to_list, set_key, to_yaml
from metainfer.ckb.proposals import ProposalError, StaleProposalError, apply, describe, edits, read_proposal
from metainfer.ckb.store import KnowledgeBase, KnowledgeError
from metainfer.spec.document import Document

ROOT = Path(__file__).parents[2]
EVIDENCE = {"summary": "Seen on a long prompt", "source": "run 7 of qwen3-cpu", "figures": {"errors": 3}}
REVISION = {"contract": "general/counter", "version": 3, "evidence": [EVIDENCE]}
MODE = {
    "id": "counts-kinds",
    "symptom": "Too few.",
    "trigger": "A set in between.",
    "caught_by": "check_counts",
    "fix": "Count the list.",
    "source": "run 7",
}


def proposal(*deltas: Mapping[str, Any]) -> Proposal:
    return Proposal.model_validate_json(
        json.dumps({"title": "Know more about counting", "author": "A reviewer", "deltas": deltas})
    )


def snapshot(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def changed_lines(old: bytes, new: bytes) -> tuple[list[str], list[str]]:
    before, after = old.decode().splitlines(), new.decode().splitlines()
    return [line for line in before if line not in after], [line for line in after if line not in before]


def test_a_failure_mode_is_added_and_the_rest_of_the_file_stays_as_written(base: Path) -> None:
    before = snapshot(base)
    assert apply(base, proposal({"kind": "failure-mode", **REVISION, "failure_mode": MODE})) == [
        "general/counter/contract.yaml"
    ]
    removed, added = changed_lines(*(s["general/counter/contract.yaml"] for s in (before, snapshot(base))))
    assert removed == ["version: 3"]
    assert added == [
        "version: 4",
        "  - id: counts-kinds",
        "    symptom: Too few.",
        "    trigger: A set in between.",
        "    fix: Count the list.",
        "    source: run 7",
    ]
    assert [mode.id for mode in KnowledgeBase.load(base).contracts["general/counter"].failure_modes] == [
        "off-by-one",
        "counts-kinds",
    ]


def test_an_exemplar_comes_with_its_file_and_mutants(base: Path) -> None:
    delta = {
        "kind": "new-exemplar",
        **REVISION,
        "exemplar": {"path": "exemplars/loop.py", "units": ["count"], "applies_when": "not seed"},
        "files": {"exemplars/loop.py": "def count(tokens):\n    return sum(1 for _ in tokens)\n"},
        "mutants": [
            {"name": "twos", "file": "exemplars/loop.py", "replace": "sum(1", "with": "sum(2", "why": "Counts double."}
        ],
    }
    assert apply(base, proposal(delta)) == [
        "general/counter/contract.yaml",
        "general/counter/exemplars/loop.py",
        "general/counter/mutants.yaml",
    ]
    contract = KnowledgeBase.load(base).contracts["general/counter"]
    assert [exemplar.path for exemplar in contract.exemplars] == ["exemplars/plain.py", "exemplars/loop.py"]
    assert contract.mutants[-1].name == "twos"
    assert "# The only way to count." in (base / "general/counter/contract.yaml").read_text()


def test_a_new_contract_comes_whole(base: Path) -> None:
    old = KnowledgeBase.load(base).contracts["general/counter"]
    definition = json.loads(old.model_dump_json(by_alias=True, exclude={"digest", "mutants"}))
    definition |= {"id": "general/tally", "version": 1, "applies_when": "not stop"}
    delta = {
        "kind": "new-contract",
        "evidence": [EVIDENCE],
        "definition": definition,
        "check": (base / "general/counter/check.py").read_text(),
        "mutants": [json.loads(mutant.model_dump_json(by_alias=True)) for mutant in old.mutants],
        "files": {"exemplars/plain.py": (base / "general/counter/exemplars/plain.py").read_text()},
    }
    apply(base, proposal(delta))
    new = KnowledgeBase.load(base).contracts["general/tally"]
    assert new.units == old.units
    assert new.mutants == old.mutants
    assert new.semantics == old.semantics


def test_a_platform_fact_belongs_to_a_platform(base: Path) -> None:
    fact = {"id": "read", "statement": "Reads 17.7 GB/s.", "measured_on": "Two AVX2 cores", "date": "2026-12-01"}
    with pytest.raises(KnowledgeError, match="platform_facts belong to contracts of the platform layer"):
        apply(base, proposal({"kind": "platform-fact", **REVISION, "fact": fact}))


def test_several_deltas_raise_a_version_once(base: Path) -> None:
    apply(
        base,
        proposal(
            {"kind": "failure-mode", **REVISION, "failure_mode": MODE},
            {"kind": "revised-field", **REVISION, "field": "title", "value": "Counts the tokens"},
        ),
    )
    contract = KnowledgeBase.load(base).contracts["general/counter"]
    assert (contract.version, contract.title, len(contract.failure_modes)) == (4, "Counts the tokens", 2)


def test_a_proposal_for_another_version_is_refused(base: Path) -> None:
    delta = {"kind": "failure-mode", **REVISION, "version": 2, "failure_mode": MODE}
    with pytest.raises(StaleProposalError, match="is for version 2, the base has 3"):
        apply(base, proposal(delta))


@pytest.mark.parametrize(
    ("delta", "error", "words"),
    [
        (
            {"kind": "deprecation", **REVISION, "contract": "general/nothing", "reason": "Old."},
            ProposalError,
            "no such",
        ),
        (
            {"kind": "failure-mode", **REVISION, "failure_mode": MODE | {"caught_by": "check_nothing"}},
            KnowledgeError,
            "check_nothing",
        ),
        (
            {"kind": "revised-field", **REVISION, "field": "applies_when", "value": "sometimes"},
            KnowledgeError,
            "no fact",
        ),
        ({"kind": "revised-field", **REVISION, "field": "units", "value": 3}, KnowledgeError, "list"),
        (
            {"kind": "revised-field", **REVISION, "field": "requires", "value": ["general/x"]},
            KnowledgeError,
            "general/x",
        ),
        (
            {"kind": "revised-file", **REVISION, "path": "exemplars/plain.py", "text": "def count(): ...\n"},
            KnowledgeError,
            "occurs 0 times",
        ),
        (
            {"kind": "revised-file", **REVISION, "path": "exemplars/other.py", "text": "x"},
            ProposalError,
            "no such file",
        ),
    ],
)
def test_a_proposal_that_would_break_the_base_changes_nothing(
    base: Path, delta: Mapping[str, Any], error: type[Exception], words: str
) -> None:
    before = snapshot(base)
    with pytest.raises(error, match=words) as caught:
        apply(base, proposal(delta))
    assert snapshot(base) == before
    assert "metainfer-proposal-" not in str(caught.value)


@pytest.mark.parametrize("path", ["../check.py", "/etc/passwd", "exemplars/../../x", ".git/config", "contract.yaml"])
def test_a_path_outside_of_the_contract_is_refused(path: str) -> None:
    with pytest.raises(ValueError):
        proposal({"kind": "revised-file", **REVISION, "path": path, "text": "x"})


def test_evidence_is_not_optional() -> None:
    with pytest.raises(ValueError):
        proposal({"kind": "deprecation", **REVISION, "evidence": [], "reason": "Old."})


def test_a_write_that_fails_half_way_leaves_the_base_as_it_was(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write, calls = snapshot(base), proposals.write_atomic, 0

    def failing(path: Path, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError("no space left on device")
        write(path, data)

    monkeypatch.setattr(proposals, "write_atomic", failing)
    delta = {
        "kind": "new-exemplar",
        **REVISION,
        "exemplar": {"path": "exemplars/loop.py", "units": ["count"], "applies_when": "not seed"},
        "files": {"exemplars/loop.py": "def count(tokens):\n    return sum(1 for _ in tokens)\n"},
        "mutants": [
            {"name": "twos", "file": "exemplars/loop.py", "replace": "sum(1", "with": "sum(2", "why": "Counts double."}
        ],
    }
    with pytest.raises(OSError, match="no space"):
        apply(base, proposal(delta))
    assert snapshot(base) == before


def test_a_looser_tolerance_is_described_as_weaker_first_and_with_its_evidence(base: Path) -> None:
    check = (base / "general/counter/check.py").read_text().replace("1e-6", "1e-2")
    changes = describe(
        base,
        proposal(
            {"kind": "revised-field", **REVISION, "field": "title", "value": "Counts the tokens"},
            {"kind": "revised-file", **REVISION, "path": "check.py", "text": check},
        ),
    )
    assert [(change.path, change.weakens) for change in changes] == [
        ("general/counter/check.py", True),
        ("general/counter/contract.yaml", False),
    ]
    assert "0.01" in changes[0].words
    assert changes[0].evidence == "Seen on a long prompt (errors 3, run 7 of qwen3-cpu)"


def test_describing_writes_nothing(base: Path) -> None:
    before = snapshot(base)
    describe(base, proposal({"kind": "deprecation", **REVISION, "reason": "Ask len."}))
    edits(base, proposal({"kind": "deprecation", **REVISION, "reason": "Ask len."}))
    assert snapshot(base) == before


def test_a_proposal_survives_being_written_and_read(tmp_path: Path) -> None:
    one = proposal({"kind": "failure-mode", **REVISION, "failure_mode": MODE})
    (tmp_path / "proposal.json").write_text(one.model_dump_json(by_alias=True))
    assert read_proposal(tmp_path / "proposal.json") == one


def test_an_unreadable_proposal_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ProposalError, match=r"bad\.json"):
        read_proposal(tmp_path / "bad.json")
    with pytest.raises(ProposalError, match="No such file"):
        read_proposal(tmp_path / "none.json")


# Plain YAML cannot hold control characters, and contracts hold none.
_TEXT = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" \n"), max_size=40)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"\A[a-z_]{1,8}\Z"), inner, max_size=3),
    max_leaves=8,
)
_MAPPINGS = st.dictionaries(st.from_regex(r"\A[a-z_]{1,8}\Z"), _VALUES, min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(_MAPPINGS, st.from_regex(r"\A[a-z_]{1,8}\Z"), _VALUES)
def test_an_edited_document_reads_as_the_edited_data(data: dict[str, Any], key: str, value: Any) -> None:
    assert Document.parse(set_key(to_yaml(data), key, value), "x").data == {**data, key: value}


@settings(max_examples=40, deadline=None)
@given(_MAPPINGS, st.from_regex(r"\A[a-z_]{1,8}\Z"), st.lists(_VALUES, max_size=3), _VALUES)
def test_an_item_is_appended_to_any_list(data: dict[str, Any], key: str, items: list[Any], item: Any) -> None:
    text = to_yaml({**data, key: items})
    assert Document.parse(append_item(text, key, item), "x").data == {**data, key: [*items, item]}


@settings(max_examples=40, deadline=None)
@given(st.lists(_MAPPINGS, max_size=3), _MAPPINGS)
def test_an_item_is_appended_to_a_document_that_is_a_list(items: list[Any], item: Any) -> None:
    text = to_yaml(items) if items else ""
    assert Document.parse(append_to_list(text, item), "x").data == [*items, item]


def test_each_fault_of_a_file_is_one_line_that_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "delta.json"
    delta = {"kind": "revised-file", "contract": "general/counter", "version": 3, "evidence": [], "path": "../x"}
    path.write_text(json.dumps({"title": "t", "author": "a", "deltas": [delta]}))
    with pytest.raises(ProposalError) as caught:
        read_proposal(path)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [str(path), f"deltas.0.revised-file.{field}"] for field in ("evidence", "path", "text")
    ]


def test_the_example_in_the_documentation_fits(tmp_path: Path) -> None:
    documented = (ROOT / "docs/knowledge.md").read_text().partition("```json\n")[2].partition("```")[0]
    example = json.loads(documented)
    [delta] = example["deltas"]
    delta["version"] = KnowledgeBase.load(ROOT / "ckb").contracts[delta["contract"]].version
    file = tmp_path / "delta.json"
    file.write_text(json.dumps(example))
    assert list(edits(ROOT / "ckb", read_proposal(file))) == ["general/paged-kv-cache/contract.yaml"]
