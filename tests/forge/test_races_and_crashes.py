"""Many writers at once, and writers that stop between any two steps: one pull request, and refs that agree."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from metainfer.forge.local import LocalForge
from metainfer.forge.markers import branch_of
from metainfer.forge.plumbing import RefUpdate, Repository
from metainfer.forge.protocol import ConflictError, Status
from tests.forge.engines import ALICE, BOB, ENGINE, FOLDER, KNOWLEDGE, copy_forge, refs, request

BRANCH = f"refs/heads/{branch_of(ENGINE)}"


def assert_consistent(forge: LocalForge, engine: str = ENGINE) -> None:
    """At most one open pull request for the engine, its branch at its head, and every object there."""
    pulls = [pull for pull in forge.list("all") if pull.engine == engine]
    still_open = [pull for pull in pulls if pull.state == "open"]
    assert len(still_open) <= 1
    for pull in still_open:
        assert forge.repo.commit_at(f"refs/heads/{branch_of(engine)}") == pull.head
    assert forge.repo.read("fsck", "--no-dangling", "--no-progress", "--connectivity-only") == b""


# Races


def _run_together(work: Callable[..., None], argument_lists: Sequence[tuple[object, ...]]) -> None:
    context = multiprocessing.get_context("fork")
    start = context.Barrier(len(argument_lists))
    processes = [context.Process(target=work, args=(start, *arguments)) for arguments in argument_lists]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def _publish(start: object, git_dir: Path, input_hash: str, engine: str) -> None:
    forge = LocalForge(git_dir)
    wanted = request(forge, input_hash, engine=engine, proposals=KNOWLEDGE)
    start.wait()  # type: ignore[attr-defined]
    forge.publish(wanted)


def test_concurrent_runs_of_the_same_inputs_make_one_pull_request(forge: LocalForge) -> None:
    _run_together(_publish, [(forge.repo.git_dir, "sha256:aa", ENGINE)] * 6)
    assert [(pull.number, pull.state) for pull in forge.list("all")] == [(1, "open")]
    assert_consistent(forge)
    # One of them opened it, the others found it: the record was written once.
    assert (
        forge.repo.read("rev-list", "--count", "--first-parent", "refs/metainfer/pulls/1", "^main", f"^{BRANCH}")
        == b"1\n"
    )


def test_concurrent_runs_of_different_inputs_share_one_pull_request(forge: LocalForge) -> None:
    _run_together(_publish, [(forge.repo.git_dir, f"sha256:{n}", ENGINE) for n in range(6)])
    assert [(pull.number, pull.state) for pull in forge.list("all")] == [(1, "open")]
    assert_consistent(forge)


def test_concurrent_runs_of_different_engines_each_get_a_number(forge: LocalForge) -> None:
    engines = [f"engine-{n}" for n in range(6)]
    _run_together(_publish, [(forge.repo.git_dir, "sha256:aa", engine) for engine in engines])
    pulls = forge.list("all")
    assert [pull.number for pull in pulls] == list(range(1, 7))
    assert {pull.engine for pull in pulls} == set(engines)
    for engine in engines:
        assert_consistent(forge, engine)


def _comment(start: object, git_dir: Path, text: str) -> None:
    forge = LocalForge(git_dir)
    start.wait()  # type: ignore[attr-defined]
    forge.comment(1, BOB, text)


def test_no_comment_is_lost_when_many_write_at_once(forge: LocalForge) -> None:
    forge.publish(request(forge))
    _run_together(_comment, [(forge.repo.git_dir, f"comment {n}") for n in range(5)])
    assert sorted(note.text for note in forge.get(1).comments) == [f"comment {n}" for n in range(5)]


def _merge(start: object, git_dir: Path, number: int) -> None:
    forge = LocalForge(git_dir)
    start.wait()  # type: ignore[attr-defined]
    forge.merge(number, ALICE)


def test_concurrent_merges_of_different_engines_lose_neither(forge: LocalForge) -> None:
    for number, engine in enumerate(("engine-0", "engine-1", "engine-2"), start=1):
        forge.publish(request(forge, engine=engine))
        forge.approve(number, ALICE)
    _run_together(_merge, [(forge.repo.git_dir, number) for number in (1, 2, 3)])
    for engine in ("engine-0", "engine-1", "engine-2"):
        assert forge.read_tree("main", f"engines/{engine}")
    assert [pull.state for pull in forge.list("all")] == ["merged"] * 3


def _merge_or_lose(start: object, git_dir: Path) -> None:
    forge = LocalForge(git_dir)
    start.wait()  # type: ignore[attr-defined]
    with contextlib.suppress(ConflictError):
        forge.merge(1, ALICE)


def test_an_update_that_races_with_a_merge_never_lets_an_unreviewed_head_in(forge: LocalForge) -> None:
    head = forge.publish(request(forge)).head
    forge.approve(1, ALICE)
    context = multiprocessing.get_context("fork")
    start = context.Barrier(2)
    processes = [
        context.Process(target=_merge_or_lose, args=(start, forge.repo.git_dir)),
        context.Process(target=_publish, args=(start, forge.repo.git_dir, "sha256:bb", ENGINE)),
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    first = forge.get(1)
    assert first.state == "open" or first.head == head
    assert_consistent(forge)


# Crashes


class Crash(BaseException):
    """Stands for the process being killed: nothing catches it."""


class CrashingRepository(Repository):
    """Dies instead of making the `at`-th change to the repository."""

    def __init__(self, git_dir: Path, at: int) -> None:
        super().__init__(git_dir)
        self.left = at

    def _mutate(self, arguments, stdin, extra):  # type: ignore[no-untyped-def]
        self.left -= 1
        if self.left == 0:
            raise Crash
        return super()._mutate(arguments, stdin, extra)


def crashing(forge: LocalForge, at: int) -> LocalForge:
    twin = LocalForge(forge.repo.git_dir)
    twin.repo = twin.store.repo = CrashingRepository(forge.repo.git_dir, at)
    return twin


def crash_everywhere(template: Path, folder: Path, prepare, act, check) -> int:  # type: ignore[no-untyped-def]
    """Crash `act` at every write in turn; `act` again without a crash; `check`. Returns the number of writes."""
    prepared = copy_forge(template, folder / "prepared.git")
    prepare(prepared)
    for at in range(1, 100):
        forge = copy_forge(prepared.repo.git_dir, folder / f"{at}.git")
        try:
            act(crashing(forge, at))
        except Crash:
            act(forge)
            check(forge)
        else:
            act(forge)  # killed after the last write, before the caller heard of it
            check(forge)
            return at - 1
    raise AssertionError("more writes than expected")


def test_a_first_publication_killed_at_any_write_is_mended_by_the_next(template: Path, tmp_path: Path) -> None:
    def check(forge: LocalForge) -> None:
        assert [pull.state for pull in forge.list("all")] == ["open"]
        assert forge.publish(request(forge, proposals=KNOWLEDGE)).status is Status.UNCHANGED
        assert_consistent(forge)

    writes = crash_everywhere(
        template, tmp_path, lambda _: None, lambda f: f.publish(request(f, proposals=KNOWLEDGE)), check
    )
    assert writes >= 15  # blobs, indexes, trees, commits, and the one move of refs


def test_an_update_killed_at_any_write_is_mended_by_the_next(template: Path, tmp_path: Path) -> None:
    def check(forge: LocalForge) -> None:
        assert [(pull.state, pull.input_hash) for pull in forge.list("all")] == [("open", "sha256:bb")]
        assert_consistent(forge)

    crash_everywhere(
        template, tmp_path, lambda f: f.publish(request(f)), lambda f: f.publish(request(f, "sha256:bb")), check
    )


def test_a_merge_killed_at_any_write_is_finished_by_the_next(template: Path, tmp_path: Path) -> None:
    def prepare(forge: LocalForge) -> None:
        forge.publish(request(forge))
        forge.approve(1, ALICE)

    def check(forge: LocalForge) -> None:
        assert forge.get(1).state == "merged"
        assert forge.read_tree("main", FOLDER)
        assert forge.repo.read("rev-list", "--count", "--merges", "main") == b"1\n"

    crash_everywhere(template, tmp_path, prepare, lambda f: f.merge(1, ALICE), check)


# A ref transaction that Git itself was killed in can move some of the refs: each half is made by hand.


def test_a_branch_that_moved_without_its_record_is_taken_up(forge: LocalForge) -> None:
    outcome = forge.publish(request(forge))
    forge.repo.move_refs(
        [RefUpdate("refs/metainfer/pulls/1", None, forge.repo.refs("refs/metainfer")["refs/metainfer/pulls/1"])], "x"
    )
    assert forge.publish(request(forge)).status is Status.CREATED
    assert forge.get(1).head
    assert outcome.head
    assert_consistent(forge)


def test_a_branch_that_is_ahead_of_its_record_is_taken_up(forge: LocalForge) -> None:
    forge.publish(request(forge))
    record = forge.repo.refs("refs/metainfer")["refs/metainfer/pulls/1"]
    forge.publish(request(forge, "sha256:bb"))
    newer = forge.repo.refs("refs/metainfer")["refs/metainfer/pulls/1"]
    forge.repo.move_refs([RefUpdate("refs/metainfer/pulls/1", record, newer)], "half")
    assert forge.publish(request(forge, "sha256:bb")).status is Status.UPDATED
    assert forge.get(1).input_hash == "sha256:bb"
    assert_consistent(forge)


@pytest.mark.parametrize("gone", [True, False])
def test_a_record_whose_branch_is_behind_or_gone_is_put_right_with_its_approvals(forge: LocalForge, gone: bool) -> None:
    old = forge.publish(request(forge)).head
    new = forge.publish(request(forge, "sha256:bb")).head
    forge.approve(1, BOB)
    forge.repo.move_refs([RefUpdate(BRANCH, None if gone else old, new)], "half")
    outcome = forge.publish(request(forge, "sha256:bb"))
    assert (outcome.status, outcome.head) == (Status.UPDATED, new)
    assert_consistent(forge)
    forge.merge(1, BOB)


def test_a_merge_that_moved_the_base_alone_counts_as_merged(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.approve(1, ALICE)
    before = refs(forge)
    forge.merge(1, ALICE)
    merged = forge.repo.refs("refs/metainfer")["refs/metainfer/pulls/1"]
    forge.repo.move_refs(
        [
            RefUpdate("refs/metainfer/pulls/1", before["refs/metainfer/pulls/1"], merged),
            RefUpdate(BRANCH, before[BRANCH], None),
        ],
        "half",
    )
    assert forge.get(1).state == "merged"
    assert forge.publish(request(forge)).status is Status.UNCHANGED
    assert forge.store.get(1).pull.state == "merged"  # type: ignore[union-attr]
    assert forge.publish(request(forge, "sha256:bb")).status is Status.CREATED


def test_a_stale_lock_is_named_instead_of_hanging(forge: LocalForge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    (forge.repo.git_dir / "refs/heads/metainfer").mkdir()
    (forge.repo.git_dir / f"{BRANCH}.lock").touch()
    with pytest.raises(ConflictError, match="lock file"):
        forge.publish(request(forge))


def test_a_move_needs_the_old_value_and_never_a_guess(forge: LocalForge) -> None:
    """The fault of a bare `--force-with-lease`: a move without the sha that was seen."""
    first = forge.base_sha()
    other = forge.repo.write_commit("main^{tree}", [first], "x\n", ALICE)
    assert not forge.repo.move_refs([RefUpdate("refs/heads/main", other, other)], "wrong old")
    assert not forge.repo.move_refs([RefUpdate("refs/heads/main", other, None)], "must not exist")
    assert forge.base_sha() == first
