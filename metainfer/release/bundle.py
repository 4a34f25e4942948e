"""The files of a release: the engine as a wheel and an sdist, its two records, and the digests of all of them.

Building runs hatchling over files that a model may have written. Hatchling runs code of the project only where a
pyproject.toml names a hook, so one that names any is refused; nothing of the engine itself is imported. It is still
meant for a job that holds no secret.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metainfer.errors import InputError, MachineError, RefusedError
from metainfer.files import sha256_bytes, write_atomic
from metainfer.forge.evidence import EVIDENCE, MANIFEST, examine
from metainfer.forge.paths import engine_folder
from metainfer.forge.protocol import Forge
from metainfer.release.versions import Version

DIGESTS = "SHA256SUMS"
_BACKEND = "hatchling.build"
_REQUIRES = re.compile(r"hatchling(?:>=[0-9.]+)?")
_OTHER = "hatch.toml"
"""Hatchling reads this beside, and before, pyproject.toml."""
_VERSION_LINE = re.compile(r'^version = "[^"\n]*"$', re.MULTILINE)
_BUILD_S = 120
_BUILD = """
import sys
from hatchling.build import build_sdist, build_wheel
print(build_wheel(sys.argv[1]))
print(build_sdist(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a release offers for download."""

    folder: Path
    files: tuple[str, ...]
    """Names within the folder; SHA256SUMS, the last one, speaks of all others."""

    def digests(self) -> dict[str, str]:
        """File name to its SHA-256 in hex, as SHA256SUMS says."""
        lines = (self.folder / DIGESTS).read_text().splitlines()
        return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def build_bundle(forge: Forge, engine: str, commit: str, version: Version, out: Path) -> Bundle:
    """Write the files of `engine`, as it is at `commit`, below `out`. The same inputs give the same bytes.

    Raises InputError if the engine is not there, RefusedError if its records do not hold or its build would run code.
    """
    folder = engine_folder(engine)
    files = {path.removeprefix(folder): data for path, data in forge.read_tree(commit, folder).items()}
    if not files:
        raise InputError(f"there is no {folder} at {commit[:12]}")
    if problems := examine(engine, files).problems:
        raise RefusedError(f"{engine} at {commit[:12]} cannot be released:\n" + "\n".join(f"  - {p}" for p in problems))
    files["pyproject.toml"] = _with_version(engine, files, version)
    out.mkdir(parents=True, exist_ok=True)
    # Absolute: the build runs in a folder of its own, where a relative path would mean another place.
    with tempfile.TemporaryDirectory(prefix="metainfer-bundle-", dir=out.resolve()) as scratch:
        source, dist = Path(scratch) / "source", Path(scratch) / "dist"
        for path, data in files.items():
            target = source / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        made = {path.name: path.read_bytes() for path in _build(engine, source, dist)}
    made |= {name: files[name] for name in (MANIFEST, EVIDENCE)}
    lines = [f"{sha256_bytes(data)}  {name}\n" for name, data in sorted(made.items())]
    for name, data in made.items():
        write_atomic(out / name, data)
    write_atomic(out / DIGESTS, "".join(lines).encode())
    return Bundle(out, (*sorted(made), DIGESTS))


def read_bundle(folder: Path) -> Bundle:
    """A bundle that another job built. RefusedError unless its files are exactly those that SHA256SUMS lists."""
    path = folder / DIGESTS
    if not path.is_file() or path.is_symlink():
        raise InputError(f"{folder} holds no {DIGESTS}; build it with `metainfer bundle`")
    bundle = Bundle(folder, ())
    wanted = bundle.digests()
    found = sorted(item.name for item in folder.iterdir())
    if odd := [name for name in wanted if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,150}", name)]:
        raise RefusedError(f"{path} lists {odd[0]!a}, which is no name of a file of a release")
    if found != sorted([*wanted, DIGESTS]):
        raise RefusedError(f"{folder} holds {', '.join(found)}, which is not what {DIGESTS} lists; build it again")
    for name, digest in wanted.items():
        item = folder / name
        if item.is_symlink() or not item.is_file() or sha256_bytes(item.read_bytes()) != digest:
            raise RefusedError(f"{item} is not the file whose digest {DIGESTS} holds; build it again")
    return Bundle(folder, (*sorted(wanted), DIGESTS))


def require_bundle_of(forge: Forge, engine: str, commit: str, version: Version, bundle: Bundle) -> None:
    """RefusedError unless a bundle is of this engine at this commit, built as this version.

    Another job, or a person, built it: for a version that was then taken, perhaps, or of another engine.
    """
    records = [f"{engine_folder(engine)}{name}" for name in (MANIFEST, EVIDENCE)]
    wanted = {path.rpartition("/")[2]: forge.read_file(commit, path) for path in records}
    wrong = [
        name
        for name, data in wanted.items()
        if data is None or name not in bundle.files or (bundle.folder / name).read_bytes() != data
    ]
    endings = (f"-{version}-py3-none-any.whl", f"-{version}.tar.gz")
    archives = [name for name in bundle.files if name not in (*wanted, DIGESTS)]
    wrong += [name for name in archives if not name.endswith(endings)]
    wrong += [f"*{ending}" for ending in endings if sum(name.endswith(ending) for name in archives) != 1]
    if wrong:
        raise RefusedError(
            f"{bundle.folder} is not of {engine} {version} at {commit[:12]} ({', '.join(wrong)}); build it again with "
            f"`metainfer bundle {engine} --version {version}`"
        )


def _with_version(engine: str, files: Mapping[str, bytes], version: Version) -> bytes:
    """The engine's pyproject.toml with the released version, once it is known to name no code that building runs."""
    name = f"{engine_folder(engine)}pyproject.toml"
    try:
        text = files["pyproject.toml"].decode()
        data: dict[str, Any] = tomllib.loads(text)
    except KeyError:
        raise RefusedError(f"{name} is missing; the engine cannot be built") from None
    except ValueError as error:
        raise RefusedError(f"{name} cannot be read: {error}") from error
    build, hatch = data.get("build-system", {}), data.get("tool", {}).get("hatch", {})
    requires = [str(item) for item in build.get("requires", ())]
    tools_only = len(requires) == 1 and _REQUIRES.fullmatch(requires[0]) is not None
    plain = set(hatch) <= {"build"} and set(hatch.get("build", {})) <= {"targets"}
    targets = hatch.get("build", {}).get("targets", {})
    plain = plain and set(targets) <= {"wheel"} and set(targets.get("wheel", {})) <= {"packages"}
    static = set(build) <= {"requires", "build-backend"} and not data.get("project", {}).get("dynamic")
    if build.get("build-backend") != _BACKEND or not (tools_only and plain and static) or _OTHER in files:
        raise RefusedError(f"{name} asks for more than {_BACKEND} over its package; a build must run no code of it")
    changed, count = _VERSION_LINE.subn(f'version = "{version}"', text)
    if count != 1:
        raise RefusedError(f"{name} holds {count} lines `version = …`; there must be one")
    return changed.encode()


def _build(engine: str, source: Path, dist: Path) -> list[Path]:
    dist.mkdir()
    # The date of the records is not that of the files: archives get one fixed time, so that a rebuild is equal.
    environment = {"PATH": os.defpath, "HOME": str(dist), "SOURCE_DATE_EPOCH": "315532800"}
    command = [sys.executable, "-I", "-c", _BUILD, str(dist)]
    try:
        done = subprocess.run(
            command, cwd=source, env=environment, capture_output=True, text=True, timeout=_BUILD_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MachineError(f"building {engine} took more than {_BUILD_S} s; is the disk slow or full?") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        raise RefusedError(f"{engine} cannot be built: {last[0]}")
    made = [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]
    if len(made) != 2:
        names = ", ".join(sorted(path.name for path in made)) or "nothing"
        raise RefusedError(f"{engine}: a build has to leave one wheel and one sdist; it left {names}")
    return made
