"""Files that a repository may have already: .gitignore and the pre-commit configuration get what they lack."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import yaml

from metainfer.ckb.editing import to_yaml
from metainfer.errors import InputError
from metainfer.scaffold.plan import Wanted, read_present

GITIGNORE = ".gitignore"
PRE_COMMIT = ".pre-commit-config.yaml"
_IGNORED = (".metainfer/", "__pycache__/")
HOOKS: list[dict[str, Any]] = [
    {
        "id": "metainfer-spec",
        "name": "metainfer specs",
        "entry": "metainfer spec check",
        "language": "system",
        "files": r"^specs/.*\.ya?ml$",
    },
    {
        "id": "metainfer-ckb",
        "name": "metainfer knowledge base",
        "entry": "metainfer ckb check",
        "language": "system",
        "files": "^ckb(/|$)",
        "pass_filenames": False,
    },
]


class _NotAddable(Exception):
    """The configuration is written in a way that this module does not add to; a person can."""


def plan_gitignore(root: Path) -> Wanted | None:
    """The file with the lines that it lacks; None if it has them."""
    text = read_text(root, GITIGNORE)
    there = {line.strip().strip("/") for line in text.splitlines()}
    missing = [line for line in _IGNORED if line.strip("/") not in there]
    if not missing:
        return None
    return Wanted(GITIGNORE, (_ended(text) + "\n".join(missing) + "\n").encode(), owned=False)


def plan_pre_commit(root: Path) -> tuple[Wanted | None, tuple[str, ...]]:
    """The configuration with the hooks that it lacks (None: it has them), and notes for a person.

    Hooks count as there by their id, wherever they come from. What cannot be added to is left alone, with a note
    that says what to add.
    """
    text = read_text(root, PRE_COMMIT)
    try:
        data = _configuration(text)
        present = {hook.get("id") for repo in data.get("repos") or () for hook in repo.get("hooks") or ()}
        missing = [hook for hook in HOOKS if hook["id"] not in present]
        if not missing:
            return None, ()
        added = {"repo": "local", "hooks": missing}
        return Wanted(PRE_COMMIT, _with_repo(text, data, added).encode(), owned=False), ()
    except _NotAddable as error:
        piece = to_yaml([{"repo": "local", "hooks": HOOKS}])
        return None, (f"{PRE_COMMIT}: {error}; it is left as it is. Add to its `repos` by hand:\n{piece}".rstrip(),)


def _configuration(text: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date like 2026-13-45
        raise _NotAddable("is not YAML") from error
    repos = (data.get("repos") or []) if isinstance(data, dict) else None
    if not isinstance(repos, list) or not all(
        isinstance(repo, dict) and all(isinstance(hook, dict) for hook in repo.get("hooks") or ()) for repo in repos
    ):
        raise _NotAddable("is not a pre-commit configuration")
    return dict(data)


def _with_repo(text: str, data: dict[str, Any], added: dict[str, Any]) -> str:
    """`text` with one more item at the end of `repos`, every other line as it is."""
    root = yaml.compose(text)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    node = next((value for key, value in pairs if key.value == "repos"), None)
    if node is None:
        edited = _ended(text) + to_yaml({"repos": [added]})
    elif not data["repos"]:
        piece = textwrap.indent(to_yaml([added]), "  ").rstrip("\n")
        edited = f"{text[: node.start_mark.index].rstrip()}\n{piece}{text[node.end_mark.index :]}"
    elif node.flow_style:
        raise _NotAddable("its `repos` are written in brackets")
    else:
        lines = text.splitlines(keepends=True)
        at = _end_of(node, lines)
        lines[at - 1] = _ended(lines[at - 1])
        indent = " " * node.start_mark.column
        edited = "".join([*lines[:at], textwrap.indent(to_yaml([added]), indent), *lines[at:]])
    if not _reads_as(edited, {**data, "repos": [*(data.get("repos") or []), added]}):
        raise _NotAddable("is written in a way that `metainfer init` cannot add to")
    return edited


def _end_of(node: yaml.Node, lines: list[str]) -> int:
    """One past the last line of a block list, without the blank lines and comments of what follows it."""
    end = min(node.end_mark.line + (1 if node.end_mark.column else 0), len(lines))
    while end > node.start_mark.line + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
        end -= 1
    return int(end)


def _reads_as(text: str, expected: dict[str, Any]) -> bool:
    try:
        return bool(yaml.safe_load(text) == expected)
    except (yaml.YAMLError, ValueError):
        return False


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else text + "\n"


def read_text(root: Path, path: str) -> str:
    """A file as text, empty if it is not there. InputError if it is not UTF-8."""
    try:
        return (read_present(root, path) or b"").decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8; mend it first") from error
