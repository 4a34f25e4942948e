"""Contracts, facts and knowledge bases for tests, on disk and in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from metainfer.ckb.facts import SERVING_FEATURES, Facts
from metainfer.ckb.models import Contract

CHECK = "def check_something(c):\n    return []\n"


def facts(**changes: Any) -> Facts:
    """A Qwen2 in bf16 with every serving feature, apart from `changes`."""
    values: dict[str, Any] = {
        "architecture": "qwen2",
        "attention_bias": True,
        "qk_norm": False,
        "tied_embeddings": False,
        "sharded": False,
        "has_chat_template": True,
        "platform": "cpu-x86-avx2",
        "weight_dtype": "bf16",
        "activation_dtype": "fp32",
        "kv_dtype": "fp32",
        "optimise": "latency",
        **dict.fromkeys(SERVING_FEATURES, True),
    }
    return Facts.model_validate(values | changes)


def contract_data(contract_id: str, *units: str, **changes: Any) -> dict[str, Any]:
    """What `contract.yaml` holds: one exemplar for all units, which always applies."""
    served = [{"path": "exemplars/all.py", "units": [*units], "applies_when": "true", "sources": []}] if units else []
    data: dict[str, Any] = {
        "id": contract_id,
        "version": 1,
        "title": "A contract for tests",
        "applies_when": "true",
        "units": [{"name": unit, "signature": f"def {unit}() -> None: ...\n"} for unit in units],
        "semantics": "Does nothing.\n",
        "invariants": ["nothing changes"],
        "exemplars": served,
        "provenance": {"author": "tests", "date": "2026-12-01"},
    }
    return data | changes


def contract(contract_id: str, *units: str, **changes: Any) -> Contract:
    """The same as a Contract that lies nowhere."""
    return Contract(**contract_data(contract_id, *units, **changes), digest="0" * 64, mutants=[])


def write_contract(root: Path, contract_id: str, *units: str, check: str = CHECK, **changes: Any) -> Path:
    """Write a contract folder with its check and exemplars below `root`; returns the folder."""
    data = contract_data(contract_id, *units, **changes)
    folder = root / contract_id
    for exemplar in data["exemplars"]:
        path = folder / exemplar["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n\n\n".join(f"def {unit}() -> None:\n    return None" for unit in exemplar["units"]) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "contract.yaml").write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    (folder / "check.py").write_text(check)
    return folder
