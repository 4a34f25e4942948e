"""What a contract may say. Faults in files, with their places, are in test_store."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from metainfer.ckb.facts import SERVING_FEATURES, Facts, fact_domains
from metainfer.ckb.models import LAYERS, ContractFile, Mutant, MutantsFile, UnitInterface
from metainfer.generate.folding import fold
from tests.ckb.builders import contract_data, facts

FACT = {"id": "read", "statement": "Reads 17.7 GB/s.", "measured_on": "two AVX2 cores", "date": "2026-12-01"}
MUTANT = {"name": "m", "file": "exemplars/a.py", "replace": "a", "with": "b", "why": "c"}
EXEMPLAR = {"path": "exemplars/a.py", "units": ["A"], "applies_when": "true", "sources": []}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_contract_refers_to_its_own_layer_and_lower_ones_only(layer: str) -> None:
    rank = LAYERS.index(layer)
    for other in LAYERS[: rank + 1]:
        for field in ("requires", "conflicts"):
            ContractFile.model_validate(contract_data(f"{layer}/a", **{field: [f"{other}/b"]}))
    for other in LAYERS[rank + 1 :]:
        with pytest.raises(ValidationError, match=f"{other}/b is in a higher layer than {layer}"):
            ContractFile.model_validate(contract_data(f"{layer}/a", requires=[f"{other}/b"]))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"exemplars": [EXEMPLAR, EXEMPLAR]}, r"the exemplar exemplars/a\.py is listed twice"),
        ({"exemplars": [EXEMPLAR | {"path": "exemplars/a.txt"}]}, r"exemplars\.0\.path"),
        ({"exemplars": [EXEMPLAR | {"sources": ["exemplars/a.so"]}]}, r"exemplars\.0\.sources\.0"),
        ({"exemplars": [EXEMPLAR | {"applies_when": "sometimes"}]}, "no fact named sometimes"),
        ({"requires": ["general/b", "general/b"]}, "the required contract general/b is listed twice"),
        ({"platform_facts": [FACT]}, "belong to contracts of the platform layer"),
        ({"surprise": 1}, "Extra inputs are not permitted"),
        ({"version": True}, "version"),
        ({"invariants": "one"}, "invariants"),
    ],
)
def test_a_contract_that_contradicts_itself_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        ContractFile.model_validate(contract_data("general/a", "A", **changes))


def test_a_platform_keeps_measured_facts() -> None:
    made = ContractFile.model_validate(contract_data("platform/cpu", platform_facts=[FACT]))
    assert made.platform_facts[0].statement == "Reads 17.7 GB/s."
    with pytest.raises(ValidationError, match="the platform fact read is listed twice"):
        ContractFile.model_validate(contract_data("platform/cpu", platform_facts=[FACT, FACT]))


@pytest.mark.parametrize("date", ["2026-13-01", "20261201", "tomorrow", "2026-W49-2"])
def test_a_date_is_a_day_written_in_one_way(date: str) -> None:
    with pytest.raises(ValidationError, match="write YYYY-MM-DD"):
        ContractFile.model_validate(contract_data("general/a", provenance={"author": "x", "date": date}))


def test_a_signature_is_python_and_defines_its_unit() -> None:
    UnitInterface(name="A", signature="@dataclass\nclass A:\n    x: int\n")
    with pytest.raises(ValidationError, match="the signature of A defines B"):
        UnitInterface(name="A", signature="def B() -> None: ...")
    with pytest.raises(ValidationError, match="the signature of A is not Python"):
        UnitInterface(name="A", signature="def A(")


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../b", "a//b", ".git/config", "a\\b", "exemplars/.x", "."]
)
def test_a_path_stays_inside_the_contract(path: str) -> None:
    with pytest.raises(ValidationError):
        Mutant.model_validate(MUTANT | {"file": path})


def test_mutants_have_different_names() -> None:
    assert MutantsFile.model_validate([MUTANT, MUTANT | {"name": "n"}])
    with pytest.raises(ValidationError, match="the mutant m is listed twice"):
        MutantsFile.model_validate([MUTANT, MUTANT])


def test_facts_are_a_closed_vocabulary() -> None:
    with pytest.raises(ValidationError, match="head_dim"):
        facts(head_dim=64)
    with pytest.raises(ValidationError, match="weight_dtype"):
        facts(weight_dtype="fp8")
    with pytest.raises(ValidationError, match="qk_norm"):
        facts(qk_norm="yes")
    with pytest.raises(ValidationError, match="frozen"):
        facts().qk_norm = True  # type: ignore[misc]


def test_every_fact_has_a_small_closed_domain_that_its_model_accepts() -> None:
    domains = fact_domains()
    assert list(domains) == list(Facts.model_fields)
    assert set(SERVING_FEATURES) <= set(domains)
    for name, values in domains.items():
        assert 1 <= len(values) <= 16
        for value in values:
            assert getattr(facts(**{name: value}), name) == value


def test_exemplars_branch_on_the_names_that_predicates_ask_about() -> None:
    for name in fact_domains():
        assert fold(f"x = 1 if S.{name} else 2\n", {name: True}, "x.py") == "x = 1\n"
