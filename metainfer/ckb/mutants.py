"""Proves that checks notice: seeds the faults of `mutants.yaml` into engines and asks the contract's own check.

A mutant is tried on several deployments until one notices; where its exemplar serves no unit, it is not run. Mutants
run in engines that keep their branches on facts, which are made in no time; that folding changes nothing is shown by
the exemplars as they are, which must pass folded and unfolded.
"""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

from metainfer.checkpoint.facts import ModelFacts
from metainfer.ckb.check_server import DEFAULT_TIMEOUT_S, IMPORT, CheckJob, CheckServer
from metainfer.ckb.checks import Finding
from metainfer.ckb.facts import SERVING_FEATURES, Facts
from metainfer.ckb.models import Contract, Mutant
from metainfer.ckb.store import KnowledgeBase, KnowledgeError


class EngineMaker(Protocol):
    """How the audit gets engines without knowing the generator; `metainfer.generate.audit_engines` has the real one."""

    def make(self, facts: Facts, model: ModelFacts, out: Path, *, folded: bool) -> None:
        """Write an engine for these facts to `out`; unfolded ones keep the exemplars' branches on facts."""

    def replace(self, engine: Path, facts: Facts, file: str, text: str) -> bool:
        """Make an unfolded `engine` again as if the knowledge base's `file` read `text`; False if it holds no such."""


@dataclass(frozen=True)
class MutantResult:
    """What became of one mutant, or of the unchanged exemplars (`mutant` is then empty)."""

    contract: str
    mutant: str
    findings: tuple[Finding, ...]
    deployments: tuple[str, ...]
    """Where it was run; the last one is where it was noticed, if it was."""

    @property
    def noticed(self) -> bool:
        """Whether a check found something; that a mutant cannot even be imported proves nothing about checks."""
        return any(finding.check != IMPORT for finding in self.findings)


@dataclass(frozen=True)
class Deployment:
    """One point of the facts, with a tiny model of that shape."""

    name: str
    facts: Facts
    model: ModelFacts = field(repr=False)


def deployment(architecture: str, weights: str, *, features: bool = True, tied: bool = False) -> Deployment:
    """A tiny deployment for audits; `features` switches all serving features on, or all but completions off."""
    qwen2 = architecture == "qwen2"
    facts = Facts.model_validate(
        {
            "architecture": architecture,
            "attention_bias": qwen2,
            "qk_norm": not qwen2,
            "tied_embeddings": tied,
            "sharded": not tied,
            "has_chat_template": features,
            "platform": "cpu-x86-avx2",
            "weight_dtype": weights,
            "activation_dtype": "fp32",
            "kv_dtype": "fp32",
            "optimise": "latency" if features else "throughput",
            **{name: features or name == "completions" for name in SERVING_FEATURES},
        }
    )
    name = f"{architecture}-{weights}-{'all' if features else 'few'}-{'tied' if tied else 'untied'}"
    return Deployment(name, facts, tiny_model(facts))


def tiny_model(facts: Facts) -> ModelFacts:
    """A model small enough for a check to take milliseconds; no two of its sizes are equal, so that none stands in."""
    return ModelFacts(
        architecture=facts.architecture,
        vocab_size=331,
        hidden_size=48,
        intermediate_size=76,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8 if facts.architecture == "qwen2" else 16,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        max_position_embeddings=1024,
        tie_word_embeddings=facts.tied_embeddings,
        attention_bias=facts.attention_bias,
        qk_norm=facts.qk_norm,
        eos_token_ids=(2, 5),
        sharded=facts.sharded,
        has_chat_template=facts.has_chat_template,
        source_dtype=facts.weight_dtype,
        num_parameters=1,
        weight_bytes=1,
    )


def default_deployments() -> tuple[Deployment, ...]:
    """Both architectures, dtypes, feature sets and heads, in four deployments; first the one with fewest kernels."""
    return (
        deployment("qwen3", "fp32", tied=True),
        deployment("qwen2", "bf16"),
        deployment("qwen2", "fp32", features=False, tied=True),
        deployment("qwen3", "bf16", features=False),
    )


class MutantRunner(AbstractContextManager["MutantRunner"]):
    """Runs mutants of one knowledge base. Engines, and the library of their kernels, are made once and kept in `work`
    (the library in `$METAINFER_KERNELS`, if that is set).

    `engines` makes the engines. Use it as a context manager: it holds `workers` processes. Its methods may be called
    by several threads; as many as there are workers get on at once.
    """

    def __init__(
        self,
        knowledge: KnowledgeBase,
        engines: EngineMaker,
        work: Path,
        deployments: Sequence[Deployment] | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        workers: int = 2,
    ) -> None:
        self.workers = workers
        self._knowledge = knowledge
        self._engines = engines
        self._work = work
        work.mkdir(parents=True, exist_ok=True)
        self._deployments = tuple(deployments or default_deployments())
        self._timeout_s = timeout_s
        self._making = threading.Lock()
        self._idle: queue.Queue[CheckServer] = queue.Queue()
        self._servers = ExitStack()

    def __enter__(self) -> MutantRunner:
        environment = {
            "METAINFER_KERNELS": os.environ.get("METAINFER_KERNELS") or str(self._work / "kernels"),
            # A stale compiled module of an engine with the same path would be run in place of the mutant.
            "PYTHONDONTWRITEBYTECODE": "1",
            # Threads that spin while they wait take the cores from whoever else works on this machine.
            "OMP_WAIT_POLICY": "passive",
            **({"OMP_NUM_THREADS": "1"} if self.workers > 1 else {}),
        }
        for _ in range(self.workers):
            self._idle.put(self._servers.enter_context(CheckServer(environment)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._servers.close()

    def unchanged(
        self, contract: Contract, where: Deployment, seeds: tuple[int, ...] = (0,), *, folded: bool = True
    ) -> MutantResult:
        """Run the contract's checks on the exemplars as they are: they must find nothing."""
        findings = self._check(CheckJob(self._engine(where, folded), self._checks(contract), seeds))
        return MutantResult(contract.id, "", findings, (where.name,))

    def mutant(self, contract: Contract, mutant: Mutant, seeds: tuple[int, ...] = (0, 1)) -> MutantResult:
        """Try one mutant where it exists, until it is noticed."""
        text = mutated_text(self._knowledge, contract, mutant)
        tried: list[str] = []
        findings: tuple[Finding, ...] = ()
        for where, engine in self._variants(contract, mutant, text):
            tried.append(where.name)
            only = (mutant.caught_by,) if mutant.caught_by else ()
            units = tuple(unit.name for unit in contract.units)
            job = CheckJob(engine, self._checks(contract), seeds, first_only=True, only=only, units=units)
            findings = self._check(job)
            shutil.rmtree(engine.parent)
            if findings:
                break
        return MutantResult(contract.id, mutant.name, findings, tuple(tried))

    def _variants(self, contract: Contract, mutant: Mutant, text: str) -> Iterator[tuple[Deployment, Path]]:
        """Engines that hold the mutant, one per deployment where there is such an engine."""
        for where in self._deployments:
            if not contract.predicate(where.facts.model_dump()):
                continue
            engine = Path(tempfile.mkdtemp(dir=self._work, prefix="mutant-")) / where.name
            shutil.copytree(self._engine(where, folded=False), engine, ignore=shutil.ignore_patterns("__pycache__"))
            if self._engines.replace(engine, where.facts, f"{contract.id}/{mutant.file}", text):
                yield where, engine
            else:
                shutil.rmtree(engine.parent)

    def _engine(self, where: Deployment, folded: bool) -> Path:
        folder = self._work / ("folded" if folded else "unfolded") / where.name
        with self._making:
            if not (folder / "manifest.json").exists():
                self._engines.make(where.facts, where.model, folder, folded=folded)
        return folder

    def _checks(self, contract: Contract) -> Path:
        return self._knowledge.check_file(contract.id)

    def _check(self, job: CheckJob) -> tuple[Finding, ...]:
        server = self._idle.get()
        try:
            return tuple(server.run(replace(job, timeout_s=self._timeout_s)))
        finally:
            self._idle.put(server)


def mutated_text(knowledge: KnowledgeBase, contract: Contract, mutant: Mutant) -> str:
    """The exemplar's text with the fault in it. KnowledgeError if the text it replaces is not there exactly once."""
    path = knowledge.folder(contract.id) / mutant.file
    text = path.read_text("utf-8")
    if text.count(mutant.replace) != 1:
        raise KnowledgeError([f"{path}: {mutant.name}: its text occurs {text.count(mutant.replace)} times, not once"])
    return text.replace(mutant.replace, mutant.with_)


def run_mutants(
    knowledge: KnowledgeBase,
    engines: EngineMaker,
    work: Path,
    contract_ids: Sequence[str] | None = None,
    deployments: Sequence[Deployment] | None = None,
) -> Iterator[MutantResult]:
    """Yield a result per mutant of the given contracts (default: all), in order, as each is known."""
    ids = contract_ids if contract_ids is not None else sorted(knowledge.contracts)
    jobs = [(contract, mutant) for contract in map(knowledge.contracts.__getitem__, ids) for mutant in contract.mutants]
    with (
        MutantRunner(knowledge, engines, work, deployments) as runner,
        ThreadPoolExecutor(runner.workers) as pool,
    ):
        yield from pool.map(lambda job: runner.mutant(*job), jobs)
