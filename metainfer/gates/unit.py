"""The unit gate: every contract that the engine was made from, checked on the engine's own units with fresh inputs."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError
from metainfer.gates.report import GateLog, GateReport, clip, reproduction, run_gate
from metainfer.gates.subject import Subject, clean_subject
from metainfer.sandbox import Limits, Sandbox

SEEDS = 2
_WALL_S = 900.0
_OUT_BYTES = 16 << 20


def unit_gate(
    engine_dir: Path,
    ckb_root: Path,
    sandbox: Sandbox,
    *,
    seed: int = 0,
    kernels: Path | None = None,
    sealed: bool = False,
    only: Collection[str] | None = None,
) -> GateReport:
    """Run the checks of the manifest's contracts, as `ckb_root` has them, on the engine's units.

    `kernels`: folder that keeps built kernels between gates; `sealed`, the engine may read it only, so that nothing
    which it leaves there reaches the next. `only`: contracts to check, for work in progress; an engine is judged by all
    of them. Nothing that could be checked and was not is a pass: a
    contract without checks, a unit without a contract, or a contract that changed since is a finding or an error.
    """

    def body(log: GateLog) -> None:
        knowledge = KnowledgeBase.load(ckb_root)
        with clean_subject(engine_dir) as subject:
            contracts = checkable(subject, knowledge, log)
            if only is not None:
                contracts = {name: checks for name, checks in contracts.items() if name in only}
            shown = {"engine": subject.folder, "ckb": ckb_root}
            built = {"kernels": kernels} if kernels else {}
            with sandbox.room(shown | built, shared={}) if sealed else sandbox.room(shown, shared=built) as room:
                log.figure("sandbox", room.isolating)
                rng = random.Random(f"unit:{seed}")
                plan = {
                    "engine": room.path("engine"),
                    "ckb": room.path("ckb"),
                    "scratch": room.path("job", "scratch"),
                    "contracts": sorted(contracts),
                    "seeds": [rng.getrandbits(31) for _ in range(SEEDS)],
                }
                (room.job / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
                room.give(room.job)
                env = {"OMP_NUM_THREADS": "1"}
                if kernels:
                    env["METAINFER_KERNELS"] = room.path("kernels")
                command = [room.python, "-m", "metainfer.gates.probes.unit_probe"]
                command += [room.path("job", "plan.json"), room.path("job", "out.json")]
                result = room.run(command, env=env, limits=Limits(wall_s=_WALL_S))
                if not result.ok:
                    log.find(f"the checks could not be run on the engine: it {result.explain()}")
                    return
                judge(log, plan, contracts, subject, _read(room.job / "out.json"))

    return run_gate("unit", reproduction("unit", engine_dir, seed), body)


def checkable(subject: Subject, knowledge: KnowledgeBase, log: GateLog) -> dict[str, list[str]]:
    """The engine's contracts and the names of their checks, read from outside. Logs what cannot be checked."""
    found: dict[str, list[str]] = {}
    for record in subject.manifest.contracts:
        contract = knowledge.contracts.get(record.id)
        if contract is None:
            log.find("is not in the knowledge base", record.id)
        elif contract.digest != record.digest:
            log.find("has changed since the engine was made from it; generate the engine again", record.id)
        if contract is not None and contract.units:
            found[record.id] = check_names(knowledge.check_file(record.id))
    for unit in subject.manifest.units:
        if unit.contract not in found:
            log.find(f"unit {unit.name} answers to no contract that can be checked", unit.module)
    if not found:
        raise InputError("the manifest names no contract with checks; nothing would be proven")
    return found


def check_names(path: Path) -> list[str]:
    """The `check_*` functions of a file. InputError if there is none: a check that does nothing proves nothing."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]
    if not names:
        raise InputError(f"{path}: defines no check_* function")
    return sorted(names)


def judge(
    log: GateLog, plan: Mapping[str, Any], contracts: Mapping[str, list[str]], subject: Subject, out: Mapping[str, Any]
) -> None:
    """Turn the probe's report, which comes from inside, into findings; what it leaves out counts against the engine."""
    reports = {report["contract"]: report for report in out["contracts"]}
    checks = 0
    for contract, names in sorted(contracts.items()):
        report = reports.get(contract)
        if report is None or sorted(report["checks"]) != names or report["seeds"] != plan["seeds"]:
            log.find("not all of its checks were run", contract)
            continue
        checks += len(names)
        for finding in report["findings"]:
            figures = {clip(str(k), 40): v for k, v in finding["figures"].items() if isinstance(v, int | float | str)}
            log.find(f"{finding['check']}: {finding['message']}", contract, **figures)
    if out["units"] != sorted(unit.name for unit in subject.manifest.units):
        log.find("the units that were checked are not those of the manifest")
    log.figure("contracts", len(contracts))
    log.figure("checks", checks)
    log.figure("units", len(subject.manifest.units))
    log.figure("seeds", len(plan["seeds"]))


def _read(path: Path) -> dict[str, Any]:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _OUT_BYTES:
        raise InputError("the checks wrote no report")
    data: dict[str, Any] = json.loads(path.read_bytes())
    return data
