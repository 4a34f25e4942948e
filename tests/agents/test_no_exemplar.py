"""Contracts that nobody has an exemplar for: what is missing must be written, and stubs hold its place meanwhile."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metainfer.agents.answer import check_file
from metainfer.ckb.audit import audit, unproven
from metainfer.ckb.models import UnitInterface
from metainfer.ckb.mutants import default_deployments
from metainfer.ckb.routing import NotCoveredError
from metainfer.ckb.store import KnowledgeBase
from metainfer.forge.setup import create_local_forge, open_forge
from metainfer.gates.static import static_gate
from metainfer.generate.assemble import AssemblyError
from metainfer.generate.blueprint import UNIT_MODULES
from metainfer.generate.inputs import EngineInputs
from metainfer.generate.regenerate import differences, regenerate
from metainfer.generate.scratch import scratch_inputs
from metainfer.generate.specializer import generate
from metainfer.generate.stubs import stub_file
from metainfer.pipeline.agents import AgentAccess, NotWrittenError, Written, agent_settings, write_units
from metainfer.pipeline.blame import assemble_what_fits
from metainfer.pipeline.run import RunRequest, run
from metainfer.pipeline.unit_judge import contracts_to_write, waves
from metainfer.progress import Silent
from metainfer.sandbox import Sandbox
from metainfer.spec.models import Generation
from tests.agents.handwritten import RMSNORM, SWIGLU, fenced
from tests.agents.scripted_endpoint import Act, answers, scripted

ROOT = Path(__file__).parents[2]
LACKING = ["family/rmsnorm", "family/swiglu-mlp"]
SETTINGS = Generation(
    backend="agents", model="scripted", contracts=[*LACKING, "family/rope"], rounds=0, reference="none", roles=[]
)


@pytest.fixture(scope="module")
def whole() -> EngineInputs:
    deployment = default_deployments()[0]
    return scratch_inputs(ROOT / "ckb", deployment.facts, deployment.model)


def without(inputs: EngineInputs, contracts: Collection[str]) -> EngineInputs:
    """The same inputs, had these contracts no exemplars."""
    routing = inputs.routing
    kept = {unit: one for unit, one in routing.exemplars.items() if routing.by_unit[unit].id not in contracts}
    return replace(inputs, routing=replace(routing, exemplars=kept))


def write(inputs: EngineInputs, folder: Path, act: Act) -> tuple[Written, list[dict[str, Any]]]:
    with scripted(act) as endpoint:
        made = write_units(
            replace(inputs, agent=agent_settings(SETTINGS)),
            SETTINGS,
            AgentAccess(endpoint.base_url),
            folder=folder / "run",
            state=folder / "state",
            sandbox=Sandbox(),
            progress=Silent(),
        )
    return made, endpoint.requests


def both(body: dict[str, Any]) -> str:
    task = body["messages"][1]["content"]
    if "Write RMSNorm" in task:
        return fenced(RMSNORM)
    return fenced(SWIGLU) if "Write SwiGLU" in task else "I cannot do that."


def test_each_contract_can_be_missing_and_says_so(whole: EngineInputs) -> None:
    everything = contracts_to_write(whole, [])
    for contract in everything:
        with pytest.raises(AssemblyError, match=f"{contract} has no exemplar"):
            generate(without(whole, [contract]))
    for missing in (everything[::2], everything[1::2], everything[:1]):
        engine = generate(without(whole, missing), scaffold=True)
        stubbed = {
            unit.contract for unit in engine.manifest.units if unit.origin == f"the interface of {unit.contract}"
        }
        assert stubbed == set(missing)


def test_an_engine_of_stubs_alone_passes_the_static_rules(whole: EngineInputs, tmp_path: Path) -> None:
    everything = contracts_to_write(whole, [])
    generate(without(whole, everything), scaffold=True).write(tmp_path / whole.name)
    report = static_gate(tmp_path / whole.name, Sandbox())
    assert [finding.message for finding in report.findings] == []


def test_a_stub_refuses_every_call(whole: EngineInputs) -> None:
    for contract in whole.routing.contracts:
        for node in ast.walk(ast.parse(stub_file(contract) if contract.units else "")):
            if isinstance(node, ast.FunctionDef):
                assert ast.unparse(node.body[-1]).startswith("raise NotImplementedError("), contract.id


ODD = {
    "async": "async def f(x: int) -> AsyncIterator[int]: ...",
    "generator": "def f(x: int) -> Iterator[int]: ...",
    "parameters": "def f(a: int, /, b: float = math.pi, *args: int, c: Tensor | None = None, **kw: Any) -> None: ...",
    "defaults of its own": "def f(x: list[int] = [i for i in range(3)], y: int = (lambda q: q)(1)) -> None: ...",
    "no dots": 'def f() -> None:\n    """Does it."""\n    pass',
    "class": "class f:\n    a: int = 1\n    b = a\n    def __init__(self, x: int = a) -> None: ...\n"
    "    async def go(self) -> Self: ...\n    @property\n    def p(self) -> int: ...\n"
    "    @staticmethod\n    def s() -> int: ...\n    class Inner:\n        def g(self) -> 'f': ...",
    "enum": "class f(enum.Enum):\n    A = 1\n    B = A",
    "tuple": "class f(NamedTuple):\n    x: int",
}


@pytest.mark.parametrize("signature", ODD.values(), ids=ODD)
def test_a_stub_of_an_odd_signature_has_its_form_and_refuses(whole: EngineInputs, signature: str) -> None:
    unit = UnitInterface(name="f", signature=signature)
    title = 'Says "so" \\ and """so"""'
    contract = whole.routing.contracts[0].model_copy(update={"units": [unit], "title": title})
    text = stub_file(contract)
    assert check_file(text, [unit]) == []
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    assert title in namespace["__doc__"]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert ast.unparse(node.body[-1]).startswith("raise NotImplementedError("), text


def test_an_asynchronous_unit_has_to_be_one() -> None:
    unit = UnitInterface(name="f", signature="async def f() -> None: ...")
    assert check_file("def f() -> None:\n    pass\n", [unit]) == ["f must be async"]
    plain = UnitInterface(name="f", signature="def f() -> None: ...")
    assert check_file("async def f() -> None:\n    pass\n", [plain]) == ["f must be a plain function, not async"]


def test_what_is_missing_is_written_first_and_after_what_it_needs(whole: EngineInputs) -> None:
    everything = contracts_to_write(whole, [])
    groups = waves(without(whole, everything).routing, everything)
    order = [name for group in groups for name in group]
    assert sorted(order) == sorted(everything)
    position = {name: number for number, group in enumerate(groups) for name in group}
    modules = list(dict.fromkeys(UNIT_MODULES.values()))
    for contract in whole.routing.contracts:
        for needed in contract.requires:
            assert position[needed] < position[contract.id], (needed, contract.id)
        for unit in contract.units:
            above = {UNIT_MODULES[u] for group in groups[: position[contract.id]] for u in _units(whole, group)}
            assert set(modules[: modules.index(UNIT_MODULES[unit.name])]) <= above | {UNIT_MODULES[unit.name]}
    few = waves(without(whole, LACKING).routing, everything)
    assert few[0] == ["family/rmsnorm"]
    assert few[1] == ["family/swiglu-mlp"]
    assert set(few[2]) == set(everything) - set(LACKING)


def _units(inputs: EngineInputs, contracts: Collection[str]) -> list[str]:
    return [unit for unit, owner in inputs.routing.by_unit.items() if owner.id in contracts]


@pytest.mark.slow
def test_what_a_model_writes_fills_the_gap_and_stands_in_the_scaffold(whole: EngineInputs, tmp_path: Path) -> None:
    inputs = without(whole, LACKING)
    made, _ = write(inputs, tmp_path, answers(both))
    assert [own.contract for own in made.units] == LACKING
    assert made.record.fell_back == ("family/rope",)  # which has an exemplar to fall back to
    candidate = assemble_what_fits(inputs, [], made.units, made.record)
    assert {unit.origin for unit in candidate.engine.manifest.units if unit.backend == "agents"} == {
        "units/family.rmsnorm.py",
        "units/family.swiglu-mlp.py",
    }
    assert "NotImplementedError" not in candidate.engine.files["scratch/layers.py"].decode()


def test_nothing_more_is_asked_once_the_gap_cannot_be_filled(whole: EngineInputs, tmp_path: Path) -> None:
    def only_swiglu(body: dict[str, Any]) -> str:
        return fenced(SWIGLU) if "Write SwiGLU" in body["messages"][1]["content"] else "I cannot do that."

    with scripted(answers(only_swiglu)) as endpoint, pytest.raises(NotWrittenError, match="no exemplar to fall back"):
        write_units(
            without(whole, LACKING),
            SETTINGS,
            AgentAccess(endpoint.base_url),
            folder=tmp_path / "run",
            state=tmp_path / "state",
            sandbox=Sandbox(),
            progress=Silent(),
        )
    assert len(endpoint.requests) == 1
    assert (tmp_path / "run" / "outcomes.json").is_file()


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A repository whose knowledge has no exemplar for two contracts."""
    work = tmp_path / "work"
    work.mkdir()
    for name in ("ckb", "specs"):
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    for contract in LACKING:
        folder = work / "ckb" / contract
        text = (folder / "contract.yaml").read_text()
        (folder / "contract.yaml").write_text(
            re.sub(r"^exemplars:\n(?:[ -].*\n)+", "exemplars: []\n", text, flags=re.M)
        )
        (folder / "mutants.yaml").unlink()
        shutil.rmtree(folder / "exemplars")
    for command in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "Reviewer"],
        ["config", "user.email", "reviewer@example.org"],
        ["add", "."],
        ["commit", "--quiet", "-m", "Start"],
    ):
        subprocess.run(["git", *command], cwd=work, check=True)
    create_local_forge(work, tmp_path / "forge.git", "reviewer@example.org")
    return work


def request(work: Path, **options: Any) -> RunRequest:
    return RunRequest(
        spec_path=work / "specs" / "tiny-qwen3.yaml",
        repo_root=work,
        state=work / ".metainfer",
        cache=work.parent / "cache",
        bench=False,
        **options,
    )


def test_knowledge_without_exemplars_is_allowed_named_and_not_for_the_specializer(bare: Path) -> None:
    knowledge = KnowledgeBase.load(bare / "ckb")
    assert audit(knowledge) == []
    assert unproven(knowledge) == LACKING
    with pytest.raises(NotCoveredError, match=r"RMSNorm: family/rmsnorm has no exemplar"):
        run(request(bare), open_forge(bare), Silent())


def test_the_plan_says_what_has_to_be_written(bare: Path) -> None:
    settings = SETTINGS.model_dump()
    planned = request(bare, dry_run=True, agents=AgentAccess("http://127.0.0.1:9/v1"), generation=settings)
    assert (
        run(planned, open_forge(bare), Silent()).plan["RMSNorm"]
        == "family/rmsnorm v1: to be written, it has no exemplar"
    )


@pytest.mark.slow
def test_an_engine_is_made_where_knowledge_has_contracts_alone(bare: Path) -> None:
    with scripted(answers(both)) as endpoint:
        asked = request(bare, agents=AgentAccess(endpoint.base_url), generation=SETTINGS.model_dump())
        result = run(asked, open_forge(bare), Silent())
    assert result.status == "published"
    assert [report.verdict for report in result.gates] == ["passed"] * 5
    assert result.run_folder is not None
    engine = result.run_folder / "tiny-qwen3"
    assert differences(engine, regenerate(engine, bare / "ckb")) == []
