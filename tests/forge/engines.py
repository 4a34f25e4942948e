"""A small engine as data, with a real manifest and evidence in the shape that the gates write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metainfer.files import pretty_json, sha256_bytes
from metainfer.forge.evidence import REQUIRED_GATES
from metainfer.forge.local import LocalForge
from metainfer.forge.plumbing import RefUpdate
from metainfer.forge.protocol import Forge, Identity, PublishRequest
from metainfer.gates.report import Evidence, GateReport
from metainfer.generate.manifest import Generator, Manifest, ModelRecord, UnitRecord

ENGINE = "tiny-cpu"
FOLDER = f"engines/{ENGINE}/"
ALICE = Identity("Alice Example", "alice@example.org")
BOB = Identity("Bob Example", "bob@example.org")
KNOWLEDGE = {"ckb/family/rmsnorm/contract.yaml": b"id: family/rmsnorm\nversion: 2\n"}


def manifest(
    files: Mapping[str, bytes], input_hash: str = "sha256:aa", engine: str = ENGINE, **changes: Any
) -> Manifest:
    fields: dict[str, Any] = {
        "engine": engine,
        "package": engine.replace("-", "_"),
        "input_hash": input_hash,
        "generator": Generator(version="0.1.0", tools={"ruff": "1"}),
        "spec_path": f"specs/{engine}.yaml",
        "spec": {"workload": {"max_model_len": 128, "max_concurrency": 4}},
        "model": ModelRecord(digest="sha256:m", source={}, licence="apache-2.0", facts={}),
        "facts": {"chat": True, "completions": True, "platform": "cpu-x86-avx2", "weight_dtype": "bf16"},
        "contracts": (),
        "units": (
            UnitRecord(
                name="RMSNorm",
                module="layers",
                contract="family/rmsnorm",
                contract_version=1,
                backend="specializer",
                origin="ckb/family/rmsnorm/exemplars/rmsnorm.py",
            ),
        ),
        "dependencies": ("torch",),
        "lines": 2,
        "code_lines": 2,
        "files": {path: sha256_bytes(data) for path, data in files.items()},
    }
    return Manifest(**{**fields, **changes})


def evidence(input_hash: str = "sha256:aa", verdicts: Mapping[str, str] | None = None) -> dict[str, Any]:
    """As the gates write it; verdicts that they never give ("skipped", "absent") are put in by hand."""
    given = dict.fromkeys(REQUIRED_GATES, "passed") | dict(verdicts or {})
    reports = [
        GateReport(
            gate=gate, verdict="passed", figures={}, findings=[], seconds=0.1, reproduce=f"metainfer gate {gate}"
        )
        for gate, verdict in given.items()
        if verdict != "absent"
    ]
    made = Evidence(input_hash=input_hash, machine={"cpu": "test"}, gates=reports, created="2026-12-01T00:00:00Z")
    plain: dict[str, Any] = json.loads(made.encode())
    for report in plain["gates"]:
        report["verdict"] = given[report["gate"]]
    return plain


def engine_files(
    input_hash: str = "sha256:aa",
    code: str = "print('hello')\n",
    verdicts: Mapping[str, str] | None = None,
    *,
    engine: str = ENGINE,
    more: Mapping[str, bytes] | None = None,
    **changes: Any,
) -> dict[str, bytes]:
    """Files of one engine by path within its folder."""
    files = {"README.md": b"# tiny\n", "tiny_cpu/model.py": code.encode(), **(more or {})}
    return {
        **files,
        "manifest.json": manifest(files, input_hash, engine, **changes).encode(),
        "evidence.json": pretty_json(evidence(input_hash, verdicts)),
    }


def request(
    forge: Forge,
    input_hash: str = "sha256:aa",
    *,
    engine: str = ENGINE,
    proposals: Mapping[str, bytes] | None = None,
    regenerate: bool = False,
    base_sha: str | None = None,
    body: str = "Verdict: passed.\n",
    **parts: Any,
) -> PublishRequest:
    files = engine_files(input_hash, parts.pop("code", f"print({input_hash!r})\n"), engine=engine, **parts)
    return PublishRequest(
        engine=engine,
        input_hash=input_hash,
        base_sha=base_sha or forge.base_sha(),
        engine_files={f"engines/{engine}/{path}": data for path, data in files.items()},
        title=f"Generate {engine}",
        body=body,
        proposal_files=proposals or {},
        regenerate=regenerate,
    )


def commit_on(forge: LocalForge, branch: str, files: Mapping[str, bytes | None], who: Identity = ALICE) -> str:
    """A person's commit on a branch, as an ordinary push would leave it."""
    ref = f"refs/heads/{branch}"
    old = forge.repo.commit_at(ref)
    assert old is not None
    blobs = {path: None if data is None else forge.repo.write_blob(data) for path, data in files.items()}
    commit = forge.repo.write_commit(forge.repo.write_tree(old, blobs), [old], "A person's work\n", who)
    assert forge.repo.move_refs([RefUpdate(ref, commit, old)], "push")
    return commit


def refs(forge: LocalForge) -> dict[str, str]:
    """Every ref: equal dictionaries mean that nothing happened."""
    return forge.repo.refs("refs")


def load_json(forge: LocalForge, ref: str, path: str) -> Any:
    data = forge.read_file(ref, path)
    assert data is not None
    return json.loads(data)


def copy_forge(template: Path, target: Path) -> LocalForge:
    import shutil

    shutil.copytree(template, target)
    return LocalForge(target)
