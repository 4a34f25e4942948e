"""Units that somebody wrote elsewhere, a person or an agent of theirs: the same rules, checks and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.agents.answer import check_file
from metainfer.errors import ExitCode, InputError, MetainferError
from metainfer.files import read_regular
from metainfer.generate.written import WrittenUnits
from metainfer.pipeline.agents import with_newline
from metainfer.pipeline.unit_judge import UnitJudge, contracts_to_write, waves

if TYPE_CHECKING:
    from metainfer.generate.inputs import EngineInputs
    from metainfer.sandbox import Sandbox


class SubmissionError(MetainferError):
    """A submitted file does not hold what its contract promises; the message has what was found."""

    exit_code = ExitCode.RED


def submitted_units(inputs: EngineInputs, files: Mapping[str, Path]) -> list[WrittenUnits]:
    """The files by their contracts. InputError for a unit that no contract describes, or two files for one contract."""
    found: dict[str, WrittenUnits] = {}
    for unit, path in files.items():
        contract = inputs.routing.by_unit.get(unit)
        if contract is None:
            raise InputError(f"no unit is called {unit}; there are {', '.join(sorted(inputs.routing.by_unit))}")
        if contract.id in found:
            raise InputError(f"two files for the units of {contract.id}; put them into one")
        try:
            text = read_regular(path).decode()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8") from error
        found[contract.id] = WrittenUnits(contract.id, with_newline(text), "submitted")
    return list(found.values())


def require_good(inputs: EngineInputs, submitted: Sequence[WrittenUnits], kernels: Path, sandbox: Sandbox) -> None:
    """Judge each file by itself first, so that what is wrong is told in minutes and by name."""
    kernels.mkdir(parents=True, exist_ok=True)
    judge = UnitJudge(inputs, sandbox, kernels)
    contracts = {contract.id: contract for contract in inputs.routing.contracts}
    order = [name for wave in waves(inputs.routing, contracts_to_write(inputs, [])) for name in wave]
    for own in sorted(submitted, key=lambda own: order.index(own.contract)):
        findings = check_file(own.text, contracts[own.contract].units) or judge.judge(own.contract, own.text)
        if findings:
            listed = "\n".join(f"  - {finding}" for finding in findings)
            raise SubmissionError(f"the units of {own.contract} do not hold:\n{listed}")
        judge.keep(own)
