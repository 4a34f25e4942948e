"""Whatever features a spec leaves out, what remains of the exemplars is one clean path without leftovers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from metainfer.ckb.facts import SERVING_FEATURES, Facts
from metainfer.ckb.mutants import tiny_model
from metainfer.gates.dead_code import check_path, unused_definitions
from metainfer.gates.static_tools import RUFF_IGNORED, RUFF_RULES
from metainfer.generate.scratch import assemble_scratch
from tests.ckb.builders import facts

CKB = Path(__file__).parents[2] / "ckb"
LEFT_OUT: dict[str, set[str]] = {
    "chat": {"chat"},
    "completions": {"completions"},
    "streaming and seed": {"streaming", "seed"},
    "logprobs and stop": {"logprobs", "stop"},
    "all but chat": set(SERVING_FEATURES) - {"chat"},
    "all but completions": set(SERVING_FEATURES) - {"completions"},
}


def _facts(left_out: str) -> Facts:
    return facts(**dict.fromkeys(LEFT_OUT[left_out], False))


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for number, left_out in enumerate(LEFT_OUT):
        out = tmp_path_factory.mktemp("engine") / str(number)
        chosen = _facts(left_out)
        made[left_out] = assemble_scratch(CKB, chosen, tiny_model(chosen), out, folded=True, name=f"few{number}")
    return made


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_nothing_is_left_of_what_is_left_out(engines: dict[str, Path], left_out: str) -> None:
    files = sorted(engines[left_out].glob("few*/*.py"))
    trees = {file.stem: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    dead = [(name, *complaint) for name, tree in trees.items() for complaint in check_path(tree)]
    assert dead + list(unused_definitions(trees)) == []


def test_what_remains_lints(engines: dict[str, Path]) -> None:
    command = ["ruff", "check", "--isolated", "--no-cache", "--line-length=120", "--target-version=py311"]
    command += [f"--select={RUFF_RULES}", f"--ignore={RUFF_IGNORED}", *map(str, engines.values())]
    result = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_what_remains_types(engines: dict[str, Path], left_out: str) -> None:
    package = next(engines[left_out].glob("few*"))
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", package.name]
    result = subprocess.run(command, cwd=engines[left_out], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
