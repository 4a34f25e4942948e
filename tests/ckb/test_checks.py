"""Running a contract's checks: on the engine's own code, repeatably, and with silence never taken for a pass."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metainfer.ckb.check_server import CheckJob, CheckServer
from metainfer.ckb.checks import Candidate, CheckError, Finding, load_candidate, load_checks, run_checks
from metainfer.files import canonical_json
from tests.ckb.builders import facts

PACKAGE = "checked_engine"
HEADER = "from metainfer.ckb.checks import Finding\n\n\n"


def write_engine(folder: Path, body: str = "def double(x):\n    return 2 * x\n") -> Path:
    """An engine with one unit `double` in its module `maths`."""
    manifest = {
        "package": PACKAGE,
        "facts": facts().model_dump(),
        "units": [{"name": "double", "module": "maths"}],
    }
    (folder / PACKAGE).mkdir(parents=True)
    (folder / PACKAGE / "__init__.py").write_text("")
    (folder / PACKAGE / "config.py").write_text("SIZE = 3\n")
    (folder / PACKAGE / "maths.py").write_text(body)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Candidate]:
    yield load_candidate(write_engine(tmp_path / "engine"), tmp_path)
    for name in [n for n in sys.modules if n.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def check_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "check.py"
    path.write_text(HEADER + text)
    return path


def found(engine: Candidate, text: str, seeds: tuple[int, ...] = (0,)) -> list[Finding]:
    return run_checks(check_file(engine.tmp_path, text), engine, seeds)


def test_a_check_that_finds_nothing_passes_and_one_that_finds_says_what(engine: Candidate) -> None:
    assert found(engine, "def check_a(c):\n    assert c.unit('double')(c.config.SIZE) == 6\n    return []\n") == []
    (finding,) = found(engine, "def check_a(c):\n    yield Finding('check_a', 'wrong', {'error': 0.5})\n")
    assert finding == Finding("check_a", "wrong", {"error": 0.5})


def test_an_exception_is_a_finding_with_its_place(engine: Candidate) -> None:
    (finding,) = found(engine, "def check_a(c):\n    return [1 / 0]\n")
    assert finding.message == "ZeroDivisionError: division by zero (check.py:5)"
    (finding,) = found(engine, "def check_a(c):\n    raise SystemExit(0)\n")
    assert "SystemExit" in finding.message
    (finding,) = found(engine, "def check_a(c):\n    assert c.unit('double')(1) == 3\n")
    assert "AssertionError" in finding.message


def test_a_constant_that_no_file_takes_from_config_is_told_as_that(engine: Candidate) -> None:
    (finding,) = found(engine, "def check_a(c):\n    return c.config.ROPE_THETA\n")
    assert finding.message.startswith("the constant ROPE_THETA is not used")
    assert "from .config import ROPE_THETA" in finding.message
    (finding,) = found(engine, "def check_a(c):\n    return c.unit('double').ROPE_THETA\n")
    assert "AttributeError" in finding.message


def test_a_check_that_returns_nothing_or_no_findings_has_not_passed(engine: Candidate) -> None:
    (finding,) = found(engine, "def check_a(c):\n    pass\n")
    assert "TypeError" in finding.message
    for value in ("'wrong'", "None", "False"):
        with pytest.raises(CheckError, match="a check yields Finding"):
            found(engine, f"def check_a(c):\n    yield {value}\n")


def test_a_file_without_checks_and_a_run_without_seeds_prove_nothing(engine: Candidate) -> None:
    with pytest.raises(CheckError, match="defines no check_"):
        found(engine, "def helper(c):\n    return []\n")
    with pytest.raises(CheckError, match="at least one seed"):
        found(engine, "def check_a(c):\n    return []\n", seeds=())
    with pytest.raises(CheckError, match="no such file"):
        load_checks(engine.tmp_path / "none.py")


def test_each_check_draws_from_its_seed_alone(engine: Candidate) -> None:
    draw = (
        "def check_{0}(c):\n"
        "    yield Finding('check_{0}', f'{{c.rng.random()}} {{c.torch_generator().initial_seed()}}')\n"
    )
    alone = found(engine, draw.format("b"), seeds=(4, 5))
    in_company = found(engine, draw.format("a") + "\n\n" + draw.format("b"), seeds=(4, 5))
    assert [finding.message for finding in alone] == [f.message for f in in_company if f.check == "check_b"]
    assert len({finding.message for finding in in_company}) == 4


def test_only_the_engines_own_code_is_checked(engine: Candidate, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="no unit named triple"):
        engine.unit("triple")
    stranger = tmp_path / "elsewhere.py"
    stranger.write_text("def double(x):\n    return 2 * x\n")
    (engine.engine_dir / PACKAGE / "maths.py").unlink()
    (engine.engine_dir / PACKAGE / "__init__.py").write_text("")
    engine.package.__path__ = [str(tmp_path)]
    (tmp_path / "maths.py").write_text(stranger.read_text())
    with pytest.raises(CheckError, match="outside of"):
        engine.unit("double")


def test_a_second_engine_of_the_same_name_is_not_mixed_with_the_first(engine: Candidate, tmp_path: Path) -> None:
    assert engine.unit("double")(2) == 4
    other = load_candidate(write_engine(tmp_path / "other", "def double(x):\n    return 5\n"), tmp_path)
    assert other.unit("double")(2) == 5


def test_what_is_no_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="is not an engine"):
        load_candidate(tmp_path, tmp_path)


def test_figures_fit_into_a_report_whatever_was_measured() -> None:
    import torch

    finding = Finding("check_a", "wrong", {"a": math.nan, "b": math.inf, "c": torch.tensor(0.5), "d": 3, "e": "x"})
    assert finding.figures == {"a": "nan", "b": "inf", "c": 0.5, "d": 3, "e": "x"}
    assert canonical_json(finding.figures)


def test_a_unit_that_hangs_crashes_or_prints_is_a_finding_and_harms_nobody(tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine", "import os\n\n\ndef double(x):\n    print('{')\n    return 2 * x\n")
    texts = {
        "fine": "def check_a(c):\n    c.unit('double')(1)\n    return []\n",
        "hangs": "def check_a(c):\n    while True:\n        pass\n",
        "crashes": "def check_a(c):\n    import os\n    os.kill(os.getpid(), 11)\n",
        "ends": "def check_a(c):\n    import os\n    os._exit(0)\n",
    }
    results = {}
    with CheckServer() as server:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            timeout_s = 1.0 if name == "hangs" else 60.0
            results[name] = server.run(CheckJob(engine, tmp_path / f"{name}.py", timeout_s=timeout_s))
    assert results["fine"] == []
    assert [results[name][0].check for name in ("hangs", "crashes", "ends")] == ["timeout", "crash", "crash"]
