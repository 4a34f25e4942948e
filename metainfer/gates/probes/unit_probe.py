"""Runs contract checks on an engine's units.

    python -m metainfer.gates.probes.unit_probe PLAN OUT

PLAN is JSON: the engine's folder, the knowledge base's, contract ids, seeds. OUT becomes JSON: per contract the checks
that ran, and what they found.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from metainfer.ckb.checks import Candidate, load_candidate, load_checks, run_checks


def _check(contract: str, candidate: Candidate, plan: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    path = Path(plan["ckb"], contract, "check.py")
    candidate.tmp_path = Path(plan["scratch"], contract.replace("/", "-"))
    candidate.tmp_path.mkdir(parents=True)
    findings = run_checks(path, candidate, plan["seeds"])
    return {
        "contract": contract,
        "checks": sorted(load_checks(path)),
        "seeds": plan["seeds"],
        "findings": [{"check": f.check, "message": f.message, "figures": f.figures} for f in findings],
        "seconds": round(time.monotonic() - began, 3),
    }


def _run(plan_file: str, out_file: str) -> None:
    plan: dict[str, Any] = json.loads(Path(plan_file).read_bytes())
    candidate = load_candidate(Path(plan["engine"]), Path(plan["scratch"]), seed=plan["seeds"][0])
    # Every unit is looked up once, so that one which is missing or comes from elsewhere is an error here and now.
    for unit in candidate.modules:
        candidate.unit(unit)
    reports = [_check(contract, candidate, plan) for contract in plan["contracts"]]
    Path(out_file).write_text(json.dumps({"units": sorted(candidate.modules), "contracts": reports}, default=str))


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2])
