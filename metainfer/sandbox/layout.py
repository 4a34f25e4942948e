"""What of this machine is visible inside: the system's libraries and tools, and the Python that runs metainfer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
)
TRUSTED = "/trusted"
"""Where the metainfer package lies inside, for the probes that run beside an engine."""
JOB = "/job"
HOME = "/home/sandbox"
PATH = "/usr/local/bin:/usr/bin:/bin"


def package_root() -> Path:
    """The folder of the metainfer package that is running."""
    return Path(__file__).resolve().parent.parent


def system_arguments() -> list[str]:
    """bwrap arguments for the read-only system, fresh /proc and /dev, and no network names."""
    arguments: list[str] = []
    for folder in map(Path, _SYSTEM):
        if folder.is_symlink():
            arguments += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            arguments += ["--ro-bind", str(folder), str(folder)]
    arguments += open_folders(map(Path, _SYSTEM_FILES))
    for path in _SYSTEM_FILES:
        arguments += ["--ro-bind-try", path, path]
    return [*arguments, "--proc", "/proc", "--dev", "/dev"]


def scratch_arguments(size: int) -> list[str]:
    """bwrap arguments for the writable places that vanish with the sandbox, bounded in size."""
    arguments: list[str] = []
    for folder, mode in (("/tmp", "1777"), ("/dev/shm", "1777"), (HOME, "1777")):
        arguments += ["--perms", mode, "--size", str(size), "--tmpfs", folder]
    return arguments


def python_arguments() -> list[str]:
    """bwrap arguments that show the running Python, its packages and metainfer, all read-only."""
    paths = _outermost(set(_python_folders()))
    arguments = open_folders([*paths, Path(TRUSTED, "metainfer")])
    for path in paths:
        arguments += ["--ro-bind", os.path.realpath(path), str(path)]
    return [*arguments, "--ro-bind", str(package_root()), f"{TRUSTED}/metainfer"]


def open_folders(paths: Iterable[Path]) -> list[str]:
    """bwrap arguments that make the parents of `paths`; left to itself bwrap closes them to other users than root."""
    parents = {parent for path in paths for parent in path.parents if parent != Path("/")}
    return [word for parent in sorted(parents) for word in ("--perms", "0755", "--dir", str(parent))]


def _python_folders() -> Iterator[Path]:
    """Prefixes of the interpreter under every name by which it refers to itself, and where its packages lie."""
    for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix):
        yield Path(prefix)
        yield Path(os.path.realpath(prefix))
    link = Path(sys.executable)
    for _ in range(16):  # a virtual environment's python is a link, often to a link
        yield _prefix_of(link)
        if not link.is_symlink():
            break
        link = Path(os.path.normpath(link.parent / os.readlink(link)))
    for entry in map(Path, sys.path):
        if entry.name in ("site-packages", "dist-packages") and entry.is_dir():
            yield entry


def _prefix_of(executable: Path) -> Path:
    return executable.parent.parent if executable.parent.name == "bin" else executable.parent


def _outermost(paths: set[Path]) -> list[Path]:
    """Without what the system mounts show already, and without folders inside of others."""
    system = [Path(folder) for folder in _SYSTEM]
    wanted = {path for path in paths if path != Path("/") and not any(path.is_relative_to(s) for s in system)}
    homes = {Path.home(), Path.home().resolve()}
    inside = {path for path in wanted if any(path != other and path.is_relative_to(other) for other in wanted - homes)}
    return sorted(wanted - inside - homes)
