"""What code inside the sandbox can see and do; each test is one thing that it must not."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from metainfer.errors import InputError, MachineError
from metainfer.sandbox import Limits, Room, Sandbox, bwrap, layout, seccomp, watch


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "note").write_text("readable")
    with Sandbox().room({"shown": shown}) as prepared:
        yield prepared


def python(room: Room, code: str, **options: object) -> str:
    """What `code` prints inside, or its error."""
    result = room.run([room.python, "-I", "-c", code], **options)  # type: ignore[arg-type]
    return result.stdout.strip() or result.stderr.strip()


def test_nothing_of_the_callers_environment_is_readable(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_THE_CALLER", "hunter2")
    result = room.run(["sh", "-c", "env; cat /proc/*/environ; tr '\\0' ' ' < /proc/1/cmdline; cat /proc/mounts"])
    assert "PATH=" in result.stdout
    assert "hunter2" not in result.stdout + result.stderr
    assert "TOKEN_OF_THE_CALLER" not in result.stdout + result.stderr


def test_the_first_process_does_not_name_our_folders(room: Room) -> None:
    result = room.run(["sh", "-c", "tr '\\0' '\\n' < /proc/1/cmdline"])
    assert "--args" in result.stdout
    assert str(room.job) not in result.stdout


def test_no_server_of_this_machine_can_be_reached(room: Room) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert "Connection refused" in python(room, code)


def test_the_only_network_is_its_own_loopback(room: Room) -> None:
    assert python(room, "import socket; print([name for _, name in socket.if_nameindex()])") == "['lo']"
    assert "Error" in python(room, "import socket; socket.create_connection(('192.0.2.1', 80), 2)")


def test_the_home_and_the_work_tree_are_absent(room: Room) -> None:
    assert python(room, f"import os; print(os.path.exists({str(Path(__file__))!r}))") == "False"
    listed = python(room, f"import os; print(sorted(os.listdir({str(Path.home())!r})))")
    assert ".ssh" not in listed
    assert ".cache" not in listed
    assert python(room, "import pathlib; print(pathlib.Path.home())") == layout.HOME


def test_writing_outside_of_the_job_folder_is_refused(room: Room) -> None:
    for place in (room.path("shown", "new"), room.path("shown", "note"), "/usr/new", "/new", f"{layout.TRUSTED}/new"):
        said = python(room, f"open({place!r}, 'w')")
        assert "Read-only file system" in said or "Permission denied" in said, place
    assert python(room, "open('in-job', 'w').write('x'); print('ok')") == "ok"
    assert (room.job / "in-job").read_text() == "x"


def test_the_running_python_cannot_be_altered(room: Room) -> None:
    assert "Read-only" in python(room, "import json; open(json.__file__, 'a')") or os.geteuid() == 0


def test_there_are_no_capabilities_and_none_can_be_gained(room: Room) -> None:
    status = python(room, "print(open('/proc/self/status').read())")
    assert "CapEff:\t0000000000000000" in status
    assert "CapPrm:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert python(room, "import os; print(os.getuid() != 0)") == "True"


_NAMESPACE_CALLS = """
import ctypes, threading
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, SIGCHLD, CLONE, CLONE3 = 0x10000000, 17, 56, 435
for name, call in (
    ("unshare", lambda: libc.unshare(NEWUSER)),
    ("clone", lambda: libc.syscall(CLONE, NEWUSER | SIGCHLD, 0, 0, 0, 0)),
    ("clone3", lambda: libc.syscall(CLONE3, (ctypes.c_uint64 * 11)(NEWUSER, 0, 0, 0, SIGCHLD), 88)),
):
    print(name, call(), ctypes.get_errno())
thread = threading.Thread(target=lambda: print("threads work"))
thread.start(); thread.join()
"""


def test_no_user_namespace_can_be_made_in_which_to_mount_more_memory(room: Room) -> None:
    assert not room.run(["unshare", "-Ur", "true"]).ok
    said = python(room, _NAMESPACE_CALLS).splitlines()
    assert said == ["unshare -1 1", "clone -1 1", "clone3 -1 38", "threads work"]


def test_the_filter_of_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(MachineError, match=r"knows x86_64 and aarch64, and this is riscv64"):
        seccomp.filter_program("riscv64")


def test_a_fork_bomb_stays_within_its_limit(room: Room) -> None:
    code = """
import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(30); os._exit(0)
        made += 1
except BlockingIOError:
    print('refused', made)
"""
    said = python(room, code, limits=Limits(processes=40, wall_s=20))
    assert said.startswith("refused ")
    assert int(said.split()[1]) <= 40


def test_a_file_larger_than_allowed_is_refused(room: Room) -> None:
    said = python(room, "open('big', 'wb').write(bytes(3 << 20))", limits=Limits(file_bytes=1 << 20))
    assert "File too large" in said


def test_memory_beyond_the_address_space_is_refused(room: Room) -> None:
    assert "MemoryError" in python(room, "bytes(1 << 30)", limits=Limits(address_space_bytes=1 << 29))


def test_the_scratch_space_is_bounded(room: Room) -> None:
    said = python(room, "open('/tmp/x', 'wb').write(bytes(8 << 20))", limits=Limits(scratch_bytes=1 << 20))
    assert "No space left" in said


_WRITE_FOREVER = """
import itertools, time
for number in itertools.count():
    open(f"{number}.bin", "wb").write(bytes(1 << 20))
    time.sleep(0.002)
"""


def test_a_command_that_fills_its_job_folder_is_ended_with_bounded_damage(room: Room) -> None:
    result = room.run([room.python, "-I", "-c", _WRITE_FOREVER], limits=Limits(job_bytes=32 << 20, wall_s=60))
    assert not result.timed_out
    assert result.explain().startswith("was ended: it wrote more than 32 MiB")
    assert sum(file.stat().st_size for file in room.job.iterdir()) < 512 << 20


def test_what_was_written_since_the_last_look_counts_too(room: Room) -> None:
    result = room.run(["sh", "-c", "head -c 2000000 /dev/zero > big"], limits=Limits(job_bytes=1 << 20))
    assert (result.rc, result.ok) == (0, False)
    assert "more than 1 MiB" in result.exceeded


def test_a_command_that_makes_files_without_end_is_ended(room: Room) -> None:
    code = "import itertools\nfor n in itertools.count(): open(str(n), 'w')"
    result = room.run([room.python, "-I", "-c", code], limits=Limits(job_files=500, wall_s=60))
    assert "more than 500 files" in result.exceeded


def test_files_cannot_be_hidden_below_a_path_too_long_to_follow(room: Room) -> None:
    code = "import os\nfor n in range(30): os.mkdir('d' * 200); os.chdir('d' * 200)"
    assert "cannot be measured" in room.run([room.python, "-I", "-c", code]).exceeded


def test_a_disk_that_fills_unseen_ends_the_command(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was deleted and is still open is in no folder, but its bytes are gone from the disk."""
    free = iter([800 << 20])
    usage = watch.shutil.disk_usage(room.job)
    monkeypatch.setattr(watch.shutil, "disk_usage", lambda _: usage._replace(free=next(free, 50 << 20)))
    assert "the disk had less than 100 MiB left" in room.run(["sleep", "60"]).exceeded


def test_a_command_that_takes_memory_without_end_is_ended_and_said_so(room: Room) -> None:
    code = "import time\nkept = []\nwhile True: kept.append(bytearray(8 << 20)); time.sleep(0.01)"
    result = room.run([room.python, "-I", "-c", code], limits=Limits(memory_bytes=256 << 20, wall_s=60))
    assert not result.timed_out
    assert result.explain().startswith("was ended: it used more than 256 MiB of memory")


def test_memory_of_all_its_processes_counts_together(room: Room) -> None:
    hold = "import time; kept = bytearray(100 << 20); time.sleep(60)"
    command = ["sh", "-c", f"for i in 1 2 3; do setsid {room.python} -I -c '{hold}' & done; wait"]
    assert "of memory" in room.run(command, limits=Limits(memory_bytes=200 << 20, wall_s=60)).exceeded


def test_a_machine_short_of_memory_ends_the_command_before_the_kernel_does(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = iter([4 << 30, 4 << 30])
    monkeypatch.setattr(watch, "available_memory", lambda: next(available, 100 << 20))
    assert "less than 512 MiB of memory left" in room.run(["sleep", "60"]).exceeded


def test_a_command_out_of_time_leaves_no_process_behind(room: Room) -> None:
    mark = "86413"  # seconds nobody else sleeps
    code = f"setsid sleep {mark} & (trap '' TERM; sleep {mark}) & sleep {mark}"
    result = room.run(["sh", "-c", code], limits=Limits(wall_s=1.0))
    assert result.timed_out
    assert result.rc == 124
    deadline = time.monotonic() + 5
    while _sleeping(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _sleeping(mark)


def test_a_child_that_outlives_the_command_is_ended_with_it(room: Room) -> None:
    assert room.run(["sh", "-c", "setsid sleep 86414 >/dev/null 2>&1 & echo done"]).stdout == "done\n"
    assert not _sleeping("86414")


def test_endless_output_is_cut_to_its_end(room: Room) -> None:
    result = room.run(["sh", "-c", "yes | head -c 20000000; echo the end"])
    assert result.stdout.endswith("the end\n")
    assert len(result.stdout) < 100_000


def test_the_compiler_works_inside(room: Room) -> None:
    (room.job / "add.cpp").write_text('#include <vector>\nextern "C" int one() { return std::vector<int>{1}.at(0); }\n')
    built = room.run(["g++", "-shared", "-fPIC", "-fopenmp", "-o", "add.so", "add.cpp"])
    assert built.ok, built.explain()
    assert python(room, "import ctypes; print(ctypes.CDLL('./add.so').one())") == "1"


def test_probes_find_this_very_metainfer_inside(room: Room) -> None:
    result = room.run([room.python, "-c", "import metainfer; print(metainfer.__file__)"])
    assert result.stdout.strip() == f"{layout.TRUSTED}/metainfer/__init__.py"


def test_a_private_folder_is_shown_all_the_same(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "note").write_text("for the sandbox")
    (private / "note").chmod(0o600)
    with Sandbox().room({"private": private}) as room:
        assert room.run(["cat", room.path("private", "note")]).stdout == "for the sandbox"


def test_a_link_does_not_bring_in_files_from_elsewhere(room: Room, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "code.py").write_text("pass\n")
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    assert room.run(["cat", room.add(source, "plain") + "/code.py"]).stdout == "pass\n"
    (source / "link").symlink_to(secret)
    for linked in (source, source / "link"):
        with pytest.raises(InputError, match="link is a symbolic link"):
            room.add(linked, "copy")
    assert not (room.job / "copy").exists()


def test_a_shared_folder_keeps_what_was_written(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for content in ("one", "two"):
        with Sandbox().room(shared={"kept": kept}) as room:
            assert room.run(["sh", "-c", f"echo {content} >> {room.path('kept', 'log')}"]).ok
    assert (kept / "log").read_text() == "one\ntwo\n"


def test_without_bwrap_there_is_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _without_bwrap(monkeypatch)
    with pytest.raises(MachineError, match="no bwrap on PATH"), Sandbox().room():
        pass
    assert "bubblewrap" in Sandbox().problem()


def test_a_bwrap_that_may_not_make_namespaces_is_no_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    switch = tmp_path / "switch"
    switch.write_text("1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(bwrap, "_APPARMOR_SWITCH", switch)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    bwrap.require_bwrap.cache_clear()
    try:
        with pytest.raises(MachineError, match="setting up uid map") as caught:
            Sandbox().require()
        assert "apparmor_restrict_unprivileged_userns=0" in str(caught.value)
    finally:
        bwrap.require_bwrap.cache_clear()


def test_plain_runs_are_marked_and_still_see_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_bwrap(monkeypatch)
    monkeypatch.setenv("TOKEN_OF_THE_CALLER", "hunter2")
    with Sandbox(allow_unsandboxed=True).room() as room:
        result = room.run(["env"])
        assert not result.sandboxed
        assert "hunter2" not in result.stdout
        assert room.run(["sleep", "60"], limits=Limits(wall_s=0.3)).timed_out


def test_allowing_plain_runs_does_not_choose_them(room: Room) -> None:
    with Sandbox(allow_unsandboxed=True).room() as allowed:
        assert allowed.run(["true"]).sandboxed


def test_an_ordinary_user_is_isolated_by_a_user_namespace(room: Room) -> None:
    """The other way in, with the same arguments an ordinary user gets, less the Python that such a user cannot see."""
    if os.geteuid() != 0:
        assert bwrap.sandbox_uid() is None
        return
    arguments = bwrap.bwrap_arguments([], Limits(), None)
    python_binds = layout.python_arguments()
    start = next(i for i in range(len(arguments)) if arguments[i : i + len(python_binds)] == python_binds)
    del arguments[start : start + len(python_binds)]
    handle = seccomp.open_filter()
    arguments += ["--seccomp", str(handle)]
    command = [str(bwrap.require_bwrap()), *arguments, "--", *bwrap.drop_and_limit(Limits(processes=20), None)]
    script = "grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls /home; unshare -Ur true || echo no namespace; "
    script += "for i in $(seq 40); do sleep 1 & done; wait"
    result = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command, "sh", "-c", script],
        env={"PATH": layout.PATH},
        capture_output=True,
        text=True,
        check=False,
        pass_fds=[handle],
    )
    os.close(handle)
    assert "no namespace" in result.stdout.splitlines()
    assert "CapEff:\t0000000000000000" in result.stdout, result.stderr
    assert "NoNewPrivs:\t1" in result.stdout
    assert "sandbox" in result.stdout.splitlines()
    assert "fork" in result.stderr


def _sleeping(mark: str) -> list[int]:
    return [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", mark]]


def _without_bwrap(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise MachineError("no sandbox: there is no bwrap on PATH; install bubblewrap")

    from metainfer.sandbox import sandbox

    monkeypatch.setattr(sandbox, "require_bwrap", missing)
