"""What a publication may hold: plain text files, in the engine's folder and in ckb/, and nothing that surprises.

The files come from generated code's side of the house, so they are refused rather than repaired. The same rules
are applied twice: to the bytes before they become commits, and to the commits before they are merged.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from metainfer.errors import InputError
from metainfer.forge.plumbing import FILE_MODE, TreeEntry
from metainfer.forge.protocol import PublishRefusedError, PublishRequest

KNOWLEDGE = "ckb/"
MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 8 << 20
MAX_FILES = 500
MAX_PATH_CHARACTERS = 200
# One part of a path. No leading dot (.git, .gitattributes, .github, and whatever a tool reads next year), no
# trailing dot or space (which Windows drops), no `~` (GIT~1 is .git there), nothing outside ASCII (which macOS may
# fold away), no backslash, colon or control character.
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._+-]*[A-Za-z0-9_+-])?")
_ENGINE = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,98}[a-z0-9])?")
# Files that change how Git or a tool behaves, whatever their content.
_FORBIDDEN_NAMES = frozenset({"codeowners", "con", "prn", "aux", "nul", "git"})


def check_engine_name(engine: str) -> str:
    """Return `engine` if it can be a folder, a branch and a tag prefix. Raises InputError."""
    if not _ENGINE.fullmatch(engine) or ".." in engine or engine.endswith(".lock"):
        raise InputError(
            f"{engine!r} cannot name an engine: use a-z, 0-9, '.', '_' and '-', starting and ending with a letter "
            "or digit, at most 100 characters, no '..' and no '.lock' at the end"
        )
    return engine


def engine_folder(engine: str) -> str:
    """The engine's folder from the repository's root, with a trailing slash."""
    return f"engines/{check_engine_name(engine)}/"


def check_request(request: PublishRequest) -> None:
    """Refuse a publication that would leave its folders. Raises PublishRefusedError naming each path."""
    complaints = path_complaints(request.engine_files, [engine_folder(request.engine)])
    complaints += path_complaints(request.proposal_files, [KNOWLEDGE])
    complaints += size_complaints({**request.engine_files, **request.proposal_files})
    if not request.engine_files:
        complaints.append(f"{engine_folder(request.engine)}: no files; an engine cannot be empty")
    for path, data in sorted({**request.engine_files, **request.proposal_files}.items()):
        if not _is_text(data):
            complaints.append(f"{path}: not text in UTF-8; binaries do not belong in a pull request")
    if complaints:
        raise PublishRefusedError(_listing(complaints))


def path_complaints(paths: Iterable[str], allowed: Iterable[str]) -> list[str]:
    """What is wrong with `paths`, each of which must lie below one of the `allowed` folders."""
    paths, allowed = sorted(paths), tuple(allowed)
    complaints = []
    for path in paths:
        shown = ascii(path)[1:-1]
        if not path.startswith(allowed):
            complaints.append(f"{shown}: outside {' and '.join(allowed)}")
        elif len(path) > MAX_PATH_CHARACTERS:
            complaints.append(f"{shown[:80]}…: longer than {MAX_PATH_CHARACTERS} characters")
        elif bad := [part for part in path.split("/") if not _is_part(part)]:
            complaints.append(f"{shown}: {bad[0]!a} is not allowed as a part of a path")
    return complaints + _collisions(paths)


def mode_complaints(entries: Mapping[str, TreeEntry]) -> list[str]:
    """What is wrong with the kinds of the files in a tree: only plain, non-executable files may be merged."""
    kinds = {"120000": "a symbolic link", "160000": "a submodule", "100755": "executable"}
    return [
        f"{ascii(path)[1:-1]}: {kinds.get(entry.mode, f'of mode {entry.mode}')}; only plain files are allowed"
        for path, entry in sorted(entries.items())
        if entry.mode != FILE_MODE
    ]


def size_complaints(files: Mapping[str, bytes]) -> list[str]:
    """What is too large, or too many."""
    complaints = [
        f"{ascii(path)[1:-1]}: {len(data)} bytes, above the {MAX_FILE_BYTES} allowed for one file"
        for path, data in sorted(files.items())
        if len(data) > MAX_FILE_BYTES
    ]
    if len(files) > MAX_FILES:
        complaints.append(f"{len(files)} files, above the {MAX_FILES} allowed")
    total = sum(map(len, files.values()))
    if total > MAX_TOTAL_BYTES:
        complaints.append(f"{total} bytes in all, above the {MAX_TOTAL_BYTES} allowed")
    return complaints


def spelling_complaints(paths: Iterable[str], existing: Iterable[str]) -> list[str]:
    """Paths that differ from one already in the repository by case alone, in a folder's name or the file's."""
    spellings: dict[str, str] = {}
    for path in existing:
        for prefix in _prefixes(path):
            spellings.setdefault(prefix.casefold(), prefix)
    return [
        f"{path}: differs only in case from {known}"
        for path in sorted(paths)
        for prefix in _prefixes(path)
        if (known := spellings.get(prefix.casefold(), prefix)) != prefix
    ]


def collect_files(
    folder: Path, prefix: str, *, leave_out: frozenset[str] = frozenset({"__pycache__"})
) -> dict[str, bytes]:
    """Read a folder of generated files as publishable ones: `prefix` + relative path → content.

    Links, devices and executable files are refused, since their meaning would be lost or widened on the way into
    Git. Folders named in `leave_out` are skipped wherever they stand. Raises PublishRefusedError.
    """
    files: dict[str, bytes] = {}
    complaints = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if leave_out.intersection(relative.parts):
            continue
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            continue
        if not stat.S_ISREG(mode):
            complaints.append(f"{relative}: not a regular file")
        elif mode & 0o111:
            complaints.append(f"{relative}: executable; only plain files are allowed")
        elif path.stat().st_size > MAX_FILE_BYTES:
            complaints.append(f"{relative}: above the {MAX_FILE_BYTES} bytes allowed for one file")
        else:
            files[prefix + relative.as_posix()] = path.read_bytes()
    if complaints:
        raise PublishRefusedError(_listing(complaints))
    return files


def _is_part(part: str) -> bool:
    stem = part.casefold().partition(".")[0]
    return bool(_PART.fullmatch(part)) and stem not in _FORBIDDEN_NAMES and not part.casefold().endswith(".lock")


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _prefixes(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def _collisions(paths: list[str]) -> list[str]:
    """Paths that are one path on a file system that folds case, and files that are also folders."""
    complaints = []
    seen: dict[str, str] = {}
    files = {path.casefold() for path in paths}
    for path in paths:
        for prefix in _prefixes(path):
            first = seen.setdefault(prefix.casefold(), prefix)
            if first != prefix:
                complaints.append(f"{ascii(path)[1:-1]}: differs only in case from {ascii(first)[1:-1]}")
                break
            if prefix != path and prefix.casefold() in files:
                complaints.append(f"{ascii(path)[1:-1]}: {ascii(prefix)[1:-1]} is a file")
                break
    return complaints


def _listing(complaints: list[str]) -> str:
    shown = complaints[:20]
    more = [f"  - … and {len(complaints) - 20} more"] if len(complaints) > 20 else []
    return "refused to publish; nothing was written:\n" + "\n".join([f"  - {c}" for c in shown] + more)
