"""Runs a contract's executable half against a candidate engine.

`check.py` holds functions `check_*(c: Candidate) -> Iterable[Finding]`. A finding is a broken promise with its figures;
no finding is a pass. An exception is a finding too, and a file without a check is an error: silence proves nothing.
"""

from __future__ import annotations

import importlib.util
import json
import math
import random
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from metainfer.ckb.facts import Facts
from metainfer.errors import InputError

if TYPE_CHECKING:
    import torch

Figure = float | int | str


class CheckError(InputError):
    """A check file cannot be run, or a candidate is not where it says it is."""


@dataclass(frozen=True)
class Finding:
    """One promise of the contract that the candidate breaks."""

    check: str
    message: str
    figures: dict[str, Figure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Reports are JSON, which has no NaN and no infinity; those are the very figures of the worst findings.
        plain = {name: _plain(value) for name, value in self.figures.items()}
        object.__setattr__(self, "figures", plain)


def _plain(value: object) -> Figure:
    """`value` as JSON can hold it; scalars of torch and numpy too."""
    if isinstance(value, str | int):
        return value
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else str(number)


Check = Callable[["Candidate"], Iterable[Finding]]


@dataclass
class Candidate:
    """An engine under check. Checks reach its units by name and draw all randomness from its seed."""

    engine_dir: Path
    package: ModuleType
    facts: Facts
    modules: dict[str, str]
    """Unit name to the module that holds it, from the manifest."""
    seed: int
    tmp_path: Path

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def unit(self, name: str) -> Any:
        """The unit of that name, as the engine defines it. CheckError if it is not the engine's own code."""
        if name not in self.modules:
            raise CheckError(f"{self.engine_dir}: the manifest lists no unit named {name}")
        return getattr(self.module(self.modules[name]), name)

    def module(self, name: str) -> ModuleType:
        """A module of the engine's package; its file must lie in the engine's folder."""
        module = importlib.import_module(f"{self.package.__name__}.{name}")
        file = Path(module.__file__ or "").resolve()
        if not file.is_relative_to(self.engine_dir.resolve()):
            raise CheckError(f"{module.__name__} was imported from {file}, outside of {self.engine_dir}")
        return module

    @property
    def config(self) -> Any:
        """The engine's `config` module."""
        return self.module("config")

    def torch_generator(self) -> torch.Generator:
        """A fresh generator seeded from the candidate's own stream."""
        import torch

        return torch.Generator().manual_seed(self.rng.getrandbits(63))


def load_candidate(engine_dir: Path, tmp_path: Path, seed: int = 0) -> Candidate:
    """Import the engine in `engine_dir` under its own name, from exactly there.

    Modules of an earlier candidate of the same name are forgotten first, so that two engines never mix.
    """
    manifest_path = engine_dir / "manifest.json"
    try:
        manifest = json.loads(manifest_path.read_bytes())
    except OSError as error:
        raise CheckError(f"{manifest_path}: {error.strerror}; {engine_dir} is not an engine") from error
    name = manifest["package"]
    _forget(name)
    init = engine_dir / name / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(init.parent)])
    if spec is None or spec.loader is None or not init.is_file():
        raise CheckError(f"{init}: no such package")
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    return Candidate(
        engine_dir=engine_dir,
        package=package,
        facts=Facts.model_validate(manifest["facts"]),
        modules={unit["name"]: unit["module"] for unit in manifest["units"]},
        seed=seed,
        tmp_path=tmp_path,
    )


def load_checks(check_file: Path) -> dict[str, Check]:
    """The checks of a file, in the order of definition. CheckError if there are none."""
    name = f"metainfer_check_{abs(hash(str(check_file.resolve())))}"
    spec = importlib.util.spec_from_file_location(name, check_file)
    if spec is None or spec.loader is None or not check_file.is_file():
        raise CheckError(f"{check_file}: no such file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while it is being executed.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    checks = {key: value for key, value in vars(module).items() if key.startswith("check_") and callable(value)}
    if not checks:
        raise CheckError(f"{check_file}: defines no check_* function; a check that does nothing proves nothing")
    return checks


def run_checks(
    check_file: Path,
    candidate: Candidate,
    seeds: Sequence[int],
    *,
    first_only: bool = False,
    only: Collection[str] = (),
) -> list[Finding]:
    """Run every check of `check_file` (or those named in `only`) once per seed, and return what they found.

    With `first_only`, stop as soon as something is found.
    Each check starts from its seed alone, so one check's draws never shift another's and a finding can be repeated.
    """
    if not seeds:
        raise CheckError("at least one seed is needed; a check that does not run proves nothing")
    findings: list[Finding] = []
    checks = load_checks(check_file)
    if unknown := sorted(set(only) - set(checks)):
        raise CheckError(f"{check_file}: has no {', '.join(unknown)}; it has {', '.join(checks)}")
    for name, check in checks.items():
        if only and name not in only:
            continue
        for seed in seeds:
            candidate.seed = seed
            candidate.rng = random.Random(f"{name}:{seed}")
            findings += _run(name, check, candidate)
            if findings and first_only:
                return findings
    return findings


def _run(name: str, check: Check, candidate: Candidate) -> list[Finding]:
    try:
        found = list(check(candidate))
    # A unit that ends the process has broken its promise too: SystemExit is no Exception.
    except (Exception, SystemExit) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = _unused_constant(error) or f"{type(error).__name__}: {error}"
        message += f" ({Path(place.filename).name}:{place.lineno})"
        return [Finding(name, message, {"seed": candidate.seed})]
    if strangers := [type(item).__name__ for item in found if not isinstance(item, Finding)]:
        raise CheckError(f"{name} yields {strangers[0]}; a check yields Finding")
    return found


def _unused_constant(error: BaseException) -> str:
    """What is meant where a check asks `config` for a constant: an engine's config holds only those that it uses."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, ModuleType):
        return ""
    name = error.name or ""
    if error.obj.__name__.rpartition(".")[2] != "config" or not name.isupper():
        return ""
    return (
        f"the constant {name} is not used: its value stands in the code, or what needs it is missing; "
        f"take it by `from .config import {name}`"
    )


def _forget(package: str) -> None:
    for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        del sys.modules[name]
