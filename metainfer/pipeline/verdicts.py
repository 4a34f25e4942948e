"""What was found in files that were judged, kept from round to round: no round judges a file again.

So a round costs what is new in it, and asks what the round before asked even where a machine computes other figures.
It is kept by who judges, for who judges; the engine as a whole is judged by every gate afterwards.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from metainfer.errors import InputError
from metainfer.files import canonical_json, pretty_json, read_regular, sha256_bytes, write_atomic
from metainfer.generate.inputs import EngineInputs
from metainfer.pipeline.unit_judge import UnitJudge
from metainfer.sandbox import Sandbox

_FINDINGS = TypeAdapter(list[str])


class RememberingJudge(UnitJudge):
    """Judges a file for a contract once, beside the same neighbours, for the same inputs."""

    def __init__(self, inputs: EngineInputs, sandbox: Sandbox, kernels: Path, folder: Path) -> None:
        super().__init__(inputs, sandbox, kernels)
        self._folder = folder

    def judge(self, contract: str, code: str) -> list[str]:
        file = self._file(contract, code)
        try:
            return _FINDINGS.validate_json(read_regular(file))
        except (OSError, InputError, ValidationError):
            findings = super().judge(contract, code)
            write_atomic(file, pretty_json(findings))
            return findings

    def _file(self, contract: str, code: str) -> Path:
        beside = {kept.contract: kept.text for kept in self._kept.values()}
        about = {"inputs": self.inputs.input_hash, "contract": contract, "code": code, "beside": beside}
        digest = sha256_bytes(canonical_json(about | {"seed": self.seed}))
        return self._folder / digest[:2] / f"{digest}.json"
