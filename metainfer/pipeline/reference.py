"""Source that a model may look at under `reference: source:PATH`: an implementation from elsewhere, read by name.

A prompt holds what of it speaks of the contract, up to a limit: whole files if they fit, else the definitions of the
same name, and those that have most words in common with the contract.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.errors import InputError
from metainfer.files import canonical_json, read_regular, sha256_bytes

if TYPE_CHECKING:
    from metainfer.ckb.models import Contract

PREFIX = "source:"
MAX_CHARACTERS = 12_000
"""Of source in one prompt: some 3,500 tokens."""
_MAX_FILES, _MAX_BYTES = 200, 4 << 20
_KNOWLEDGE = "ckb"
_ENDINGS = (".py", ".cpp", ".cc", ".cu", ".h", ".hpp")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def read_sources(reference: str, root: Path) -> dict[str, str]:
    """Texts by name, relative to the path that the policy names; empty for other policies.

    `root`: the repository, which the path begins at and must not leave. InputError for a path without source, or with
    too much of it.
    """
    if not reference.startswith(PREFIX):
        return {}
    named = Path(reference.removeprefix(PREFIX))
    if named.is_absolute():
        raise InputError(
            f"reference {reference}: write the path relative to the repository; it travels in the manifest"
        )
    place = root / named
    _require_inside(place, root, reference)
    files = [place] if place.is_file() and place.suffix in _ENDINGS else sorted(_below(place, root / _KNOWLEDGE))
    if not files:
        raise InputError(
            f"reference {reference}: {place.name} is no source file, and no folder with {', '.join(_ENDINGS)}"
        )
    if len(files) > _MAX_FILES:
        raise InputError(f"reference {reference}: {len(files)} files; name a folder with at most {_MAX_FILES}")
    found: dict[str, str] = {}
    size = 0
    for file in files:
        name = file.name if file == place else file.relative_to(place).as_posix()
        try:
            data = read_regular(file, name=f"reference {reference}: {name}")
            found[name] = data.decode("utf-8")
            name.encode()
        except OSError as error:
            raise InputError(f"reference {reference}: {name}: {error.strerror or error}") from error
        except UnicodeError as error:
            raise InputError(f"reference {reference}: {ascii(name)[1:-1]}: not UTF-8") from error
        size += len(data)
        if size > _MAX_BYTES:
            raise InputError(f"reference {reference}: more than {_MAX_BYTES >> 20} MiB of source; name less of it")
    return found


def _require_inside(place: Path, root: Path, reference: str) -> None:
    """InputError for what lies outside of the repository, or hidden in it: a spec must not send keys to a model."""
    try:
        inside = place.resolve().relative_to(root.resolve())
    except (ValueError, OSError, RuntimeError) as error:
        raise InputError(
            f"reference {reference}: leads out of the repository; copy what is to be shown into it"
        ) from error
    if any(part.startswith(".") for part in inside.parts):
        raise InputError(f"reference {reference}: is hidden; name source that everybody sees")
    if inside.parts[:1] == (_KNOWLEDGE,):
        raise InputError(f"reference {reference}: holds checks, which no model sees; exemplars: `reference: exemplars`")


def sources_digest(sources: Mapping[str, str]) -> str:
    """Hex SHA-256 over names and texts: part of what decides what a model is asked."""
    return sha256_bytes(canonical_json(dict(sources)))


def excerpt(sources: Mapping[str, str], contract: Contract, limit: int = MAX_CHARACTERS) -> str:
    """What a prompt for `contract` shows of the sources, at most `limit` characters, in the order of the files."""
    whole = "\n\n".join(_titled(name, text) for name, text in sources.items())
    if len(whole) <= limit:
        return whole
    wanted = _words(" ".join([contract.title, *(unit.signature for unit in contract.units)]))
    units = {unit.name.lower() for unit in contract.units}
    pieces = [(name, text) for name, source in sources.items() for text in _pieces(name, source)]
    best = sorted(
        range(len(pieces)), key=lambda i: (not _defines(pieces[i][1], units), -_likeness(pieces[i][1], wanted), i)
    )
    chosen: list[int] = []
    room = limit
    for index in best:
        cost = len(_titled(*pieces[index])) + 2
        if cost <= room and _likeness(pieces[index][1], wanted) > 0:
            chosen.append(index)
            room -= cost
    return "\n\n".join(_titled(*pieces[index]) for index in sorted(chosen))


def _below(folder: Path, knowledge: Path) -> Iterator[Path]:
    """Source files of a folder, without hidden ones, what links lead to, and the knowledge base with its checks."""
    for path in folder.rglob("*") if folder.is_dir() else ():
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        judges = path.resolve().is_relative_to(knowledge.resolve())
        if path.suffix in _ENDINGS and not hidden and not judges and not path.is_symlink() and path.is_file():
            yield path


def _pieces(name: str, text: str) -> Iterator[str]:
    """The functions and classes at the top of a Python file; other files as they are."""
    try:
        tree = ast.parse(text) if name.endswith(".py") else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    definitions = (
        [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)] if tree else []
    )
    for node in definitions:
        yield ast.get_source_segment(text, node) or ""
    if not definitions:
        yield text


def _defines(text: str, names: set[str]) -> bool:
    """Whether a piece begins with the definition of one of these names, in whatever case."""
    match = re.match(r"\s*(?:async\s+)?(?:class|def)\s+(\w+)", text)
    return match is not None and match[1].lower() in names


def _titled(name: str, text: str) -> str:
    return f"# {name}\n{text.strip()}"


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text) if len(word) > 2}


def _likeness(text: str, wanted: set[str]) -> float:
    """Words in common, those of the first line (a definition's name) five times, per root of the length."""
    head = text.strip().split("\n", 1)[0]
    shared = len(_words(text) & wanted) + 5 * len(_words(head) & wanted)
    return shared / math.sqrt(max(len(text), 1))
