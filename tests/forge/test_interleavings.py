"""A rival acts between any two steps of ours: what they did must stand, and what we report must be true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from metainfer.errors import ConflictError
from metainfer.forge.local import LocalForge
from metainfer.forge.markers import branch_of
from metainfer.forge.plumbing import RefUpdate, Repository
from metainfer.forge.protocol import Status
from tests.forge.engines import ALICE, BOB, ENGINE, FOLDER, commit_on, copy_forge, request

BRANCH = f"refs/heads/{branch_of(ENGINE)}"
Act = Callable[[LocalForge], Any]


class InterruptedRepository(Repository):
    """Lets `rival` act once, just before our `at`-th commit or move of refs (blobs and trees bind nothing)."""

    def __init__(self, git_dir: Path, at: int, rival: Callable[[], object]) -> None:
        super().__init__(git_dir)
        self.left, self.rival, self.acted = at, rival, False

    def _mutate(self, arguments, stdin, extra):  # type: ignore[no-untyped-def]
        self.left -= arguments[0] in ("commit-tree", "update-ref")
        if self.left == 0 and not self.acted:
            self.acted = True
            self.rival()
        return super()._mutate(arguments, stdin, extra)


def interleave(
    template: Path, folder: Path, prepare: Act, ours: Act, rivals: Act, check: Callable[[LocalForge, Any, Any], None]
) -> int:
    """`ours` with `rivals` at every step in turn; `check` gets what each returned. Returns the steps of `ours`."""
    prepared = copy_forge(template, folder / "prepared.git")
    prepare(prepared)
    for at in range(1, 100):
        forge = copy_forge(prepared.repo.git_dir, folder / f"{at}.git")
        result: list[Any] = []
        twin = LocalForge(forge.repo.git_dir)
        repo = InterruptedRepository(forge.repo.git_dir, at, lambda f=forge, r=result: r.append(rivals(f)))  # type: ignore[misc]
        twin.repo = twin.store.repo = repo
        try:
            outcome = ours(twin)
        except ConflictError as error:
            outcome = error
        if not repo.acted:
            return at - 1
        check(forge, outcome, result[0])
    raise AssertionError("more steps than expected")


def test_a_commit_that_lands_on_the_base_during_a_merge_is_kept(template: Path, tmp_path: Path) -> None:
    def prepare(forge: LocalForge) -> None:
        forge.publish(request(forge))
        forge.approve(1, ALICE)

    def check(forge: LocalForge, outcome: Any, theirs: str) -> None:
        assert forge.get(1).state == "merged"
        assert forge.repo.is_ancestor(theirs, "main")
        assert forge.read_file("main", "docs/x.md") == b"theirs\n"
        assert forge.read_tree("main", FOLDER)

    steps = interleave(
        template,
        tmp_path,
        prepare,
        lambda f: f.merge(1, ALICE),
        lambda f: commit_on(f, "main", {"docs/x.md": b"theirs\n"}),
        check,
    )
    assert steps == 3  # the merge commit, the record, the move


def test_a_push_that_lands_during_a_publication_is_never_overwritten(template: Path, tmp_path: Path) -> None:
    def check(forge: LocalForge, outcome: Any, theirs: str) -> None:
        assert outcome.status is Status.BLOCKED
        assert forge.repo.commit_at(BRANCH) == theirs

    for regenerate in (False, True):
        interleave(
            template,
            tmp_path / str(regenerate),
            lambda f: f.publish(request(f)),
            lambda f, r=regenerate: f.publish(request(f, "sha256:bb", regenerate=r)),  # type: ignore[misc]
            lambda f: commit_on(f, branch_of(ENGINE), {f"{FOLDER}README.md": b"by hand\n"}),
            check,
        )


def test_a_pull_request_closed_during_an_update_is_followed_by_a_new_one(template: Path, tmp_path: Path) -> None:
    def check(forge: LocalForge, outcome: Any, _: Any) -> None:
        assert (outcome.status, outcome.number) == (Status.CREATED, 2)
        assert [pull.state for pull in forge.list("all")] == ["closed", "open"]

    interleave(
        template,
        tmp_path,
        lambda f: f.publish(request(f)),
        lambda f: f.publish(request(f, "sha256:bb")),
        lambda f: f.close(1, BOB),
        check,
    )


def test_an_update_that_lands_during_a_merge_stops_it(template: Path, tmp_path: Path) -> None:
    def prepare(forge: LocalForge) -> None:
        forge.publish(request(forge))
        forge.approve(1, ALICE)

    def check(forge: LocalForge, outcome: Any, rival: Any) -> None:
        assert isinstance(outcome, ConflictError)
        assert rival.status is Status.UPDATED
        assert forge.get(1).state == "open"
        assert not forge.read_tree("main", FOLDER)

    interleave(
        template, tmp_path, prepare, lambda f: f.merge(1, ALICE), lambda f: f.publish(request(f, "sha256:bb")), check
    )


def test_another_engine_that_takes_the_number_first_leaves_us_the_next(template: Path, tmp_path: Path) -> None:
    def check(forge: LocalForge, outcome: Any, rival: Any) -> None:
        assert (rival.number, outcome.number) == (1, 2)
        assert [pull.engine for pull in forge.list()] == ["other-cpu", ENGINE]

    interleave(
        template,
        tmp_path,
        lambda _: None,
        lambda f: f.publish(request(f)),
        lambda f: f.publish(request(f, engine="other-cpu")),
        check,
    )


def test_a_listing_with_a_gap_is_read_again(forge: LocalForge) -> None:
    """Git lists refs one by one: a listing can miss the older of two pull requests made meanwhile."""
    forge.publish(request(forge))
    forge.publish(request(forge, engine="other-cpu"))
    whole = forge.repo.refs
    calls: list[str] = []

    def refs_once_with_a_gap(prefix: str) -> dict[str, str]:
        calls.append(prefix)
        found = whole(prefix)
        return {name: sha for name, sha in found.items() if len(calls) > 1 or not name.endswith("/1")}

    forge.repo.refs = refs_once_with_a_gap  # type: ignore[method-assign]
    assert [recorded.pull.number for recorded in forge.store.all()] == [1, 2]


def test_a_base_whose_history_was_rewritten_does_not_make_our_branch_a_persons(forge: LocalForge) -> None:
    forge.publish(request(forge))
    moves: Sequence[RefUpdate] = [
        RefUpdate("refs/heads/main", forge.repo.write_commit("main^{tree}", [], "New root\n", ALICE), forge.base_sha())
    ]
    assert forge.repo.move_refs(moves, "rewrite")
    assert forge.publish(request(forge)).status is Status.UPDATED
    assert forge.publish(request(forge)).status is Status.UNCHANGED
