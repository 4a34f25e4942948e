"""The static gate: what can be known of an engine without running any of it."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

from metainfer.gates.dead_code import check_path, unused_definitions
from metainfer.gates.report import GateLog, GateReport, reproduction, run_gate
from metainfer.gates.source_rules import check_reach
from metainfer.gates.static_tools import run_compiler, run_mypy, run_ruff
from metainfer.gates.subject import Subject, clean_subject
from metainfer.gates.typed_in import check_cpp_literals, check_literals
from metainfer.generate.lines import code_lines
from metainfer.generate.manifest import EVIDENCE_NAME, MANIFEST_NAME, altered_files, read_manifest
from metainfer.sandbox import Sandbox

MAX_LINES = 1500
"""Python and C++ together. Code only: blank lines, comments and docstrings are free, so that explaining never costs."""
_SOURCES = (".py", ".cpp", ".h")
_SUFFIXES = frozenset({".py", ".cpp", ".h", ".json", ".md", ".toml"})


def static_gate(
    engine_dir: Path, sandbox: Sandbox, *, mypy_cache: Path | None = None, max_lines: int | None = MAX_LINES
) -> GateReport:
    """Files as listed, compiled, linted, typed; imports allowed; no dead branches, no typed-in facts; small enough.

    `mypy_cache`: where mypy keeps what it learned of torch, which takes half a minute the first time; by default in
    metainfer's cache folder. `max_lines`: None for a part in progress, whose length says nothing of the whole.
    """

    def body(log: GateLog) -> None:
        check_files(engine_dir, log)
        with clean_subject(engine_dir) as subject:
            _judge_size(subject, log, max_lines)
            trees = _parse(subject, log)
            for name, tree in trees.items():
                _judge(subject, name, tree, log)
            for module, line, message in unused_definitions(trees):
                log.find(message, f"{subject.package}/{module}.py:{line}")
            _judge_cpp(subject, log)
            run_ruff(subject, log)
            if not log.total:  # mypy would follow every import, and there is enough to mend already
                run_mypy(subject, log, mypy_cache)
            run_compiler(subject, sandbox, log)

    return run_gate("static", reproduction("static", engine_dir), body)


def check_files(engine_dir: Path, log: GateLog) -> None:
    """The folder holds exactly what the manifest lists: regular files of the known kinds, unchanged."""
    for complaint in altered_files(engine_dir, read_manifest(engine_dir)):
        log.find(complaint)
    count = 0
    for path in sorted(engine_dir.rglob("*")):
        if "__pycache__" in path.relative_to(engine_dir).parts:
            continue  # never copied to where the engine runs
        name = path.relative_to(engine_dir).as_posix()
        if path.is_symlink():
            log.find("is a symbolic link", name)
        elif path.is_file():
            count += 1
            if path.suffix not in _SUFFIXES:
                log.find(f"is none of {', '.join(sorted(_SUFFIXES))}", name)
            elif b"\0" in path.read_bytes():
                log.find("is not text", name)
        elif not path.is_dir():
            log.find("is no regular file", name)
    if not count - len([name for name in (MANIFEST_NAME, EVIDENCE_NAME) if (engine_dir / name).exists()]):
        log.find("the engine has no files")
    log.figure("files", count)


def _parse(subject: Subject, log: GateLog) -> dict[str, ast.Module]:
    """Module name to syntax tree, for every module that compiles."""
    trees: dict[str, ast.Module] = {}
    for path in subject.sources(".py"):
        try:
            text = path.read_text(encoding="utf-8")
            trees[_module(subject, path)] = ast.parse(text)
            compile(text, path.name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            log.find(f"does not compile: {error}", subject.shown(path))
            trees.pop(_module(subject, path), None)
    if "__init__" not in trees:
        log.find(f"there is no package {subject.package}")
    return trees


def _module(subject: Subject, path: Path) -> str:
    return path.relative_to(subject.package_dir).with_suffix("").as_posix()


def _judge(subject: Subject, module: str, tree: ast.Module, log: GateLog) -> None:
    complaints = [*check_reach(module.rpartition("/")[2], tree), *check_path(tree)]
    if module != "config":
        complaints += check_literals(tree, subject.config)
    for line, message in sorted(complaints):
        log.find(message, f"{subject.package}/{module}.py:{line}")


def _judge_cpp(subject: Subject, log: GateLog) -> None:
    for path in subject.sources(".cpp", ".h"):
        if path.name != "constants.h":
            text = path.read_text(encoding="utf-8", errors="replace")
            for line, message in check_cpp_literals(text, subject.config):
                log.find(message, f"{subject.shown(path)}:{line}")


def _judge_size(subject: Subject, log: GateLog, max_lines: int | None) -> None:
    lines = dict(_lines(subject))
    total = sum(lines.values())
    log.figure("lines_of_code", total)
    log.figure("lines", sum(len(path.read_bytes().splitlines()) for path in subject.sources(*_SOURCES)))
    if max_lines is not None and total > max_lines:
        longest = ", ".join(f"{name} {count}" for name, count in _longest(lines))
        log.find(f"{total} lines of code in Python and C++, more than {max_lines}; the longest: {longest}", lines=total)


def _lines(subject: Subject) -> Iterator[tuple[str, int]]:
    """Lines of code by file; a file that does not parse counts whole, and is reported by another rule."""
    for path in subject.sources(*_SOURCES):
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            yield path.name, code_lines(path.name, text)
        except (SyntaxError, tokenize.TokenError):
            yield path.name, len(text.splitlines())


def _longest(lines: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(lines.items(), key=lambda item: -item[1])[:3]
