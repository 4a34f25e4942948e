"""Every check notices the faults it is there for, and finds nothing in the exemplars as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from metainfer.ckb.models import Contract, Mutant
from metainfer.ckb.mutants import Deployment, MutantResult, MutantRunner, default_deployments, deployment
from metainfer.ckb.store import KnowledgeBase, KnowledgeError
from metainfer.generate.audit_engines import ScratchEngines

CKB = Path(__file__).parents[2] / "ckb"
UNFOLDED = deployment("qwen3", "bf16", tied=True)


def _contracts() -> list[Contract]:
    # A knowledge base that does not load has a test of its own; it must not keep the others from being collected.
    try:
        return [contract for contract in KnowledgeBase.load(CKB).contracts.values() if contract.units]
    except KnowledgeError:
        return []


CONTRACTS = _contracts()
MUTANTS = [(contract, mutant) for contract in CONTRACTS for mutant in contract.mutants]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutantRunner]:
    with MutantRunner(KnowledgeBase.load(CKB), ScratchEngines(CKB), tmp_path_factory.mktemp("mutants")) as runner:
        yield runner


Results = Callable[[Contract, Mutant | Deployment], MutantResult]


@pytest.fixture(scope="module")
def results(runner: MutantRunner, request: pytest.FixtureRequest) -> Iterator[Results]:
    """Results of all selected tests of this module, run two at once as soon as the first is asked for."""
    with ThreadPoolExecutor(runner.workers) as pool:
        pending: dict[tuple[str, str], Future[MutantResult]] = {}

        def ask(contract: Contract, what: Mutant | Deployment) -> Future[MutantResult]:
            key = (contract.id, what.name)
            if key not in pending:
                run = runner.mutant if isinstance(what, Mutant) else runner.unchanged
                pending[key] = pool.submit(run, contract, what)  # type: ignore[arg-type]
            return pending[key]

        for item in request.session.items:
            values = getattr(getattr(item, "callspec", None), "params", {})
            what = values.get("mutant", values.get("where"))
            if getattr(item, "module", None) is request.module and what is not None:
                ask(values["contract"], what)
        yield lambda contract, what: ask(contract, what).result()
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def unfolded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutantRunner]:
    engines = ScratchEngines(CKB, folded=False)
    with MutantRunner(KnowledgeBase.load(CKB), engines, tmp_path_factory.mktemp("unfolded")) as runner:
        yield runner


def test_the_knowledge_base_loads() -> None:
    assert KnowledgeBase.load(CKB).contracts


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.id)
def test_every_contract_with_units_has_at_least_three_mutants(contract: Contract) -> None:
    assert len(contract.mutants) >= 3


@pytest.mark.parametrize(("contract", "mutant"), MUTANTS, ids=lambda x: x.id if isinstance(x, Contract) else x.name)
def test_the_check_notices_the_mutant(results: Results, contract: Contract, mutant: Mutant) -> None:
    result = results(contract, mutant)
    assert result.deployments, f"no deployment's engine contains {mutant.file} with this fault"
    assert result.noticed, f"unnoticed on {', '.join(result.deployments)}: {mutant.why}"


@pytest.mark.parametrize("where", default_deployments(), ids=lambda d: d.name)
@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.id)
def test_the_exemplars_pass_their_checks(results: Results, contract: Contract, where: Deployment) -> None:
    if contract.predicate(where.facts.model_dump()):
        assert not results(contract, where).findings


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda c: c.id)
def test_the_exemplars_pass_their_checks_before_folding(unfolded: MutantRunner, contract: Contract) -> None:
    if contract.predicate(UNFOLDED.facts.model_dump()):
        assert not unfolded.unchanged(contract, UNFOLDED).findings
