"""Which knowledge answers for a deployment; two answers, or none, are named before anything is spent."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from metainfer.ckb.facts import fact_domains
from metainfer.ckb.models import Contract
from metainfer.ckb.routing import NotCoveredError, RoutingError, coverage, require_coverage, route
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import ExitCode
from tests.ckb.builders import contract, facts

FP32, BF16 = 'weight_dtype == "fp32"', 'weight_dtype == "bf16"'


def knowledge(*contracts: Contract) -> KnowledgeBase:
    return KnowledgeBase(Path("ckb"), {c.id: c for c in contracts})


def exemplar(path: str, units: Iterable[str], applies_when: str) -> dict[str, object]:
    return {"path": path, "units": [*units], "applies_when": applies_when, "sources": []}


def test_contracts_and_exemplars_are_chosen_by_their_predicates() -> None:
    variants = [exemplar("exemplars/a.py", ["Linear"], FP32), exemplar("exemplars/b.py", ["Linear"], BF16)]
    base = knowledge(
        contract("family/linear", "Linear", exemplars=variants),
        contract("family/qk-norm", "QkNorm", applies_when="qk_norm"),
        contract("general/cli", "main"),
    )
    routing = route(base, facts(weight_dtype="bf16"))
    assert [c.id for c in routing.contracts] == ["family/linear", "general/cli"]
    assert routing.source_of("Linear")[1].path == "exemplars/b.py"
    assert "QkNorm" not in routing.by_unit
    assert route(base, facts(weight_dtype="fp32")).source_of("Linear")[1].path == "exemplars/a.py"


def test_two_contracts_for_one_unit_are_an_error_that_names_both() -> None:
    base = knowledge(contract("family/linear", "Linear"), contract("platform/linear", "Linear", applies_when=BF16))
    with pytest.raises(RoutingError, match="both family/linear and platform/linear define Linear"):
        route(base, facts())
    assert route(base, facts(weight_dtype="fp32")).by_unit["Linear"].id == "family/linear"


def test_two_exemplars_for_one_unit_are_an_error_that_names_both() -> None:
    variants = [exemplar("exemplars/a.py", ["Linear"], "true"), exemplar("exemplars/b.py", ["Linear"], BF16)]
    with pytest.raises(RoutingError, match=r"both exemplars/a\.py and exemplars/b\.py serve Linear"):
        route(knowledge(contract("family/linear", "Linear", exemplars=variants)), facts())


def test_what_a_contract_requires_must_apply_too() -> None:
    needs = contract("family/attention", "Attention", requires=["general/cache"])
    absent = contract("general/cache", "Cache", applies_when=FP32)
    with pytest.raises(RoutingError, match="family/attention applies and requires general/cache, which does not apply"):
        route(knowledge(needs, absent), facts())
    old = contract("general/cache", "Cache", deprecated="use general/paged-cache")
    with pytest.raises(RoutingError, match="which is deprecated: use general/paged-cache"):
        route(knowledge(needs, old), facts())


def test_contracts_that_conflict_are_refused_together_and_fine_apart() -> None:
    one = contract("family/sliding", "A", conflicts=["family/full"])
    other = contract("family/full", "B", applies_when=FP32)
    with pytest.raises(RoutingError, match="family/sliding and family/full both apply here"):
        route(knowledge(one, other), facts(weight_dtype="fp32"))
    assert len(route(knowledge(one, other), facts()).contracts) == 1


def test_a_deprecated_contract_makes_room_for_its_successor() -> None:
    base = knowledge(
        contract("family/linear", "Linear", deprecated="use platform/linear"), contract("platform/linear", "Linear")
    )
    assert route(base, facts()).by_unit["Linear"].id == "platform/linear"


def test_coverage_lists_every_missing_unit_with_its_reason() -> None:
    base = knowledge(
        contract("family/linear", "Linear", exemplars=[exemplar("exemplars/a.py", ["Linear"], FP32)]),
        contract("family/rope", "Rope", exemplars=[]),
        contract("family/moe", "Router", applies_when=FP32),
        contract("family/old", "Old", deprecated="nobody needs it"),
        contract("general/cli", "main"),
    )
    gaps = coverage(route(base, facts()), ["Linear", "Rope", "Router", "Old", "Unheard", "main"])
    reasons = {gap.unit: gap.reason for gap in gaps}
    assert "exemplars/a.py applies when" in reasons["Linear"]
    assert reasons["Rope"] == "family/rope has no exemplar for this deployment: it has none"
    assert reasons["Router"] == f"no contract for this deployment: family/moe applies when {FP32}"
    assert "family/old is deprecated: nobody needs it" in reasons["Old"]
    assert reasons["Unheard"] == "no contract describes it"
    assert "main" not in reasons


def test_a_deployment_that_is_not_covered_stops_with_the_whole_list() -> None:
    routing = route(knowledge(contract("general/cli", "main")), facts())
    require_coverage(routing, ["main"])
    with pytest.raises(NotCoveredError, match=r"(?s)Router: .*Experts: ") as caught:
        require_coverage(routing, ["Router", "main", "Experts"])
    assert caught.value.exit_code == ExitCode.REFUSED


def test_the_order_of_contracts_on_disk_does_not_matter() -> None:
    contracts = [contract("general/b", "B"), contract("general/a", "A"), contract("family/c", "C")]
    forwards, backwards = (route(knowledge(*order), facts()) for order in (contracts, contracts[::-1]))
    assert [c.id for c in forwards.contracts] == [c.id for c in backwards.contracts]


@pytest.mark.slow
def test_ten_thousand_contracts_route_as_one_by_one() -> None:
    terms = [
        f'{name} == "{value}"' if isinstance(value, str) else f"{name} == {value}"
        for name, values in fact_domains().items()
        for value in values
    ]
    texts = [" and ".join(chosen) for chosen in itertools.combinations(terms, 3)]
    contracts = [
        contract(f"family/synthetic-{number}", f"Unit{number}", applies_when=texts[number % len(texts)])
        for number in range(10_000)
    ]
    deployment = facts(architecture="qwen3", seed=False)
    values = deployment.model_dump()
    # Python's own reading of the same words is the reference.
    expected = {c.id for c in contracts if eval(c.applies_when, {}, values)}
    routing = route(KnowledgeBase(Path("synthetic"), {c.id: c for c in contracts}), deployment)
    assert {c.id for c in routing.contracts} == expected
    gaps = coverage(routing, [f"Unit{number}" for number in range(10_000)])
    assert len(gaps) == 10_000 - len(expected)
