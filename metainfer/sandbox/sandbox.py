"""The sandbox as its users see it: prepare a room with folders in it, run commands there."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from metainfer.errors import InputError, MachineError
from metainfer.sandbox.bwrap import Bind, arguments_in_files, drop_and_limit, require_bwrap, sandbox_uid
from metainfer.sandbox.folders import own_folder
from metainfer.sandbox.layout import HOME, JOB, PATH, TRUSTED, package_root
from metainfer.sandbox.process import Child
from metainfer.sandbox.records import Limits, SandboxResult
from metainfer.sandbox.server import ServerHandle, serving

_SMALL_BYTES = 64 << 20


@dataclass(frozen=True)
class Sandbox:
    """How to run code that nobody has reviewed.

    `allow_unsandboxed`: fall back to a plain subprocess with a clean environment where no sandbox can be had. Only for
    engines made from reviewed exemplars; results and gate reports say that it happened.
    """

    allow_unsandboxed: bool = False

    def problem(self) -> str:
        """Why there is no sandbox here and how to get one; empty if it works."""
        try:
            require_bwrap()
        except MachineError as error:
            return str(error)
        return ""

    def require(self) -> None:
        """Raise MachineError unless commands can be run here."""
        if not self.allow_unsandboxed:
            require_bwrap()

    @property
    def isolating(self) -> bool:
        """Whether commands really run inside bubblewrap; MachineError if they must and cannot."""
        self.require()
        return not self.problem()

    @contextmanager
    def room(
        self, read_only: Mapping[str, Path] | None = None, *, shared: Mapping[str, Path] | None = None
    ) -> Iterator[Room]:
        """A room with an empty writable job folder, gone afterwards, and the named folders at `/<name>`.

        `read_only`: folders or files to show. `shared`: folders that commands may write too, and that stay.
        Raises MachineError if there must be a sandbox and none can be had.
        """
        isolating = self.isolating
        with own_folder("job") as folder:
            job, copies = folder / "job", folder / "shown"
            job.mkdir()
            copies.mkdir()
            dropping = isolating and sandbox_uid() is not None
            shown = dict(read_only or {})
            if dropping:
                shown = {name: _readable(path, copies / name) for name, path in shown.items()}
            room = Room(job, isolating, shown, dict(shared or {}))
            for path in (job, *room.shared.values()):
                room.give(path)
            yield room


@dataclass(frozen=True)
class Room:
    """One prepared sandbox; each command is a fresh set of namespaces over the same folders."""

    job: Path
    """The writable folder, as the outside names it."""
    isolating: bool
    read_only: Mapping[str, Path]
    shared: Mapping[str, Path] = field(default_factory=dict)

    @property
    def python(self) -> str:
        """The interpreter, by its name inside."""
        return sys.executable

    def path(self, name: str, *parts: str) -> str:
        """What a command calls a folder of this room: `job`, or a name given to `Sandbox.room`."""
        places = {"job": self.job, **self.read_only, **self.shared}
        place = Path(f"/{name}") if self.isolating and name in places else places[name]
        return str(place.joinpath(*parts))

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """All that a command sees: nothing of the caller's environment."""
        home = HOME if self.isolating else str(self.job)
        trusted = TRUSTED if self.isolating else str(package_root().parent)
        return {
            "PATH": PATH,
            "HOME": home,
            "USER": "sandbox",
            "LOGNAME": "sandbox",
            "TMPDIR": "/tmp" if self.isolating else home,
            "LANG": "C.UTF-8",
            "PYTHONPATH": trusted,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            **(extra or {}),
        }

    def run(
        self, command: Sequence[str], *, limits: Limits | None = None, env: Mapping[str, str] | None = None
    ) -> SandboxResult:
        """Run one command to its end, or to the end of its time. Arguments use `path()` for files."""
        limits = limits or Limits()
        with self._start(command, limits, env) as child:
            return child.wait(limits.wall_s)

    @contextmanager
    def serve(
        self,
        command: Sequence[str],
        *,
        port: int,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Iterator[ServerHandle]:
        """Run a server that listens on 127.0.0.1:`port` in its own network, reachable from outside by a Unix socket.

        Leaving the context kills it and all that it started. `limits.wall_s` does not apply. Start it in a thread that
        outlives the server: the kernel ends the sandbox with the thread that started it.
        """
        # A socket's path may have 108 bytes at most, so it gets a short one of its own.
        with own_folder("net") as folder:
            self.give(folder)
            socket_dir = "/relay" if self.isolating else str(folder)
            root = TRUSTED if self.isolating else str(package_root().parent)
            script = f"{root}/metainfer/sandbox/relay.py"
            relay = [self.python, "-I", "-S", script, f"{socket_dir}/http", str(port), "--", *command]
            extra = [Bind(folder, "/relay", writable=True)]
            with self._start(relay, limits or Limits(), env, extra) as child:
                yield from serving(child, folder / "http", port)

    def give(self, path: Path) -> None:
        """Let commands write `path` and what is in it."""
        if self.isolating and (uid := sandbox_uid()) is not None:
            for entry in (path, *path.rglob("*")):
                os.lchown(entry, uid, uid)

    def add(self, source: Path, name: str) -> str:
        """Copy a file or folder into the job folder; returns its name inside.

        InputError for a symbolic link in it, which would bring in what lies elsewhere.
        """
        if links := [entry for entry in (source, *source.rglob("*")) if entry.is_symlink()]:
            raise InputError(f"{links[0]} is a symbolic link, and the sandbox gets no links; put the file itself there")
        target = self.job / name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target, follow_symlinks=False)
        self.give(target)
        return self.path("job", name)

    @contextmanager
    def _start(
        self,
        command: Sequence[str],
        limits: Limits,
        env: Mapping[str, str] | None,
        extra: Sequence[Bind] = (),
    ) -> Iterator[Child]:
        environment = self.environment(env)
        if not self.isolating:
            child = Child(
                ["prlimit", f"--fsize={limits.file_bytes}", "--core=0", "--", *command],
                env=environment,
                cwd=self.job,
                sandboxed=False,
                limits=limits,
                writable=[self.job, *(bind.source for bind in extra), *self.shared.values()],
            )
        else:
            child = self._isolated(command, limits, environment, extra)
        try:
            yield child
        finally:
            child.kill()

    def _isolated(
        self,
        command: Sequence[str],
        limits: Limits,
        environment: Mapping[str, str],
        extra: Sequence[Bind],
    ) -> Child:
        binds = [Bind(self.job, JOB, writable=True), *extra]
        binds += [Bind(path.resolve(), f"/{name}") for name, path in self.read_only.items()]
        binds += [Bind(path.resolve(), f"/{name}", writable=True) for name, path in self.shared.items()]
        uid = sandbox_uid()
        with arguments_in_files(binds, limits, uid) as (arguments, handles):
            return Child(
                [str(require_bwrap()), *arguments, "--", *drop_and_limit(limits, uid, JOB), *command],
                env=environment,
                cwd=Path("/"),
                sandboxed=True,
                limits=limits,
                writable=[bind.source for bind in binds if bind.writable],
                pass_fds=handles,
            )


def _readable(source: Path, copy: Path) -> Path:
    """`source` if the user inside may read it; a copy that may be read if it is small; MachineError otherwise."""
    entries = [source, *(source.rglob("*") if source.is_dir() else ())]
    if all(_is_open(entry) for entry in entries):
        return source
    if sum(entry.lstat().st_size for entry in entries) > _SMALL_BYTES:
        raise MachineError(f"{source}: other users may not read it, and the sandbox is one; run chmod -R o+rX {source}")
    if source.is_dir():
        shutil.copytree(source, copy, symlinks=True)
    else:
        shutil.copyfile(source, copy)
    for entry in (copy, *copy.rglob("*")):
        if not entry.is_symlink():
            entry.chmod(0o755 if entry.is_dir() else 0o644)
    return copy


def _is_open(entry: Path) -> bool:
    mode = entry.lstat().st_mode
    if stat.S_ISLNK(mode):
        return True
    wanted = 0o005 if stat.S_ISDIR(mode) else 0o004
    return mode & wanted == wanted
