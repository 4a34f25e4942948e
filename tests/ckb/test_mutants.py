"""Every check notices the faults it is there for, and finds nothing in the exemplars as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from metainfer.ckb.models import Contract, Mutant
from metainfer.ckb.mutants import Deployment, MutantResult, MutantRunner, default_deployments
from metainfer.ckb.store import KnowledgeBase, KnowledgeError
from metainfer.generate.audit_engines import ScratchEngines

CKB = Path(__file__).parents[2] / "ckb"
# Both architectures, dtypes, feature sets and heads are among the quick ones.
_QUICK, _REST = default_deployments()[:3], default_deployments()[3:]
DEPLOYMENTS = [*_QUICK, *(pytest.param(where, marks=pytest.mark.slow) for where in _REST)]
UNFOLDED = replace(_QUICK[0], name="unfolded")
_SIMULTANEOUS = 4
"""More than there are cores: checks of the server mostly wait."""

Subject = Mutant | Deployment
Results = Callable[[Contract, Subject], MutantResult]


def _contracts() -> list[Contract]:
    # A knowledge base that does not load has a test of its own; it must not keep the others from being collected.
    try:
        return [contract for contract in KnowledgeBase.load(CKB).contracts.values() if contract.units]
    except KnowledgeError:
        return []


CONTRACTS = _contracts()
MUTANTS = [(contract, mutant) for contract in CONTRACTS for mutant in contract.mutants]


def _name(value: Contract | Subject) -> str:
    return value.id if isinstance(value, Contract) else value.name


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Results]:
    """Results of all selected tests of this module, several at once as soon as the first is asked for."""
    work, knowledge = tmp_path_factory.mktemp("mutants"), KnowledgeBase.load(CKB)
    with ExitStack() as stack:
        # Kernels are built anew, and not into the user's own folder.
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("METAINFER_KERNELS", str(work / "kernels"))
        runner = stack.enter_context(MutantRunner(knowledge, ScratchEngines(CKB), work, workers=_SIMULTANEOUS))
        pool = stack.enter_context(ThreadPoolExecutor(_SIMULTANEOUS))
        pending: dict[tuple[str, str], Future[MutantResult]] = {}

        def ask(contract: Contract, what: Subject) -> Future[MutantResult]:
            key = (contract.id, what.name)
            if key not in pending:
                if isinstance(what, Mutant):
                    pending[key] = pool.submit(runner.mutant, contract, what)
                else:
                    pending[key] = pool.submit(runner.unchanged, contract, what, folded=what is not UNFOLDED)
            return pending[key]

        for item in request.session.items:
            values = getattr(getattr(item, "callspec", None), "params", {})
            if getattr(item, "module", None) is request.module and "what" in values:
                ask(values["contract"], values["what"])
        yield lambda contract, what: ask(contract, what).result()
        pool.shutdown(cancel_futures=True)


def test_the_knowledge_base_loads() -> None:
    assert KnowledgeBase.load(CKB).contracts


@pytest.mark.parametrize("contract", CONTRACTS, ids=_name)
def test_every_contract_with_units_has_at_least_three_mutants(contract: Contract) -> None:
    assert len(contract.mutants) >= 3


@pytest.mark.parametrize(("contract", "what"), MUTANTS, ids=_name)
def test_the_check_notices_the_mutant(results: Results, contract: Contract, what: Mutant) -> None:
    result = results(contract, what)
    assert result.deployments, f"no deployment's engine contains {what.file} with this fault"
    assert result.noticed, f"unnoticed on {', '.join(result.deployments)}: {what.why}"


@pytest.mark.parametrize("what", [UNFOLDED, *DEPLOYMENTS], ids=_name)
@pytest.mark.parametrize("contract", CONTRACTS, ids=_name)
def test_the_exemplars_pass_their_checks(results: Results, contract: Contract, what: Deployment) -> None:
    if contract.predicate(what.facts.model_dump()):
        assert not results(contract, what).findings
