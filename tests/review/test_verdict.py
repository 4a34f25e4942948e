"""Passed only by an owner's approval of exactly this head; what is short of it, and why."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.forge.codeowners import parse_codeowners
from metainfer.review.knowledge import KnowledgeChange
from metainfer.review.verdict import Approval, Reviews, State, judge

HEAD, OLD = "a" * 40, "b" * 40
OWNERS = parse_codeowners("* @everyone\n/ckb/ @alice @org/knowledge\n/ckb/general/ @bob\n")


def change(*paths: str, problems: Sequence[str] = ()) -> KnowledgeChange:
    return KnowledgeChange("c" * 40, paths, (), tuple(problems))


def by(login: str, *teams: str, head: str = HEAD, may_write: bool = True) -> Approval:
    return Approval(login, (login, *teams), head, may_write)


def state(*approvals: Approval, paths: Sequence[str] = ("ckb/family/a/x",), **reviews: object) -> State:
    return judge(change(*paths), OWNERS, Reviews(approvals, **reviews), HEAD).state  # type: ignore[arg-type]


def test_no_knowledge_no_review() -> None:
    assert state(paths=()) is State.SUCCESS


def test_nobody_has_approved_yet() -> None:
    verdict = judge(change("ckb/family/a/x"), OWNERS, Reviews(), HEAD)
    assert verdict.state is State.PENDING
    assert verdict.description == "waits for @alice or @org/knowledge: ckb/family/a/x"


def test_an_owner_by_name_by_team_and_in_other_case() -> None:
    assert state(by("@alice")) is State.SUCCESS
    assert state(by("@carol", "@org/knowledge")) is State.SUCCESS
    assert state(by("@Alice")) is State.SUCCESS


def test_somebody_else_does_not_do_not_even_an_owner_of_everything() -> None:
    assert state(by("@carol")) is State.PENDING
    assert state(by("@everyone")) is State.PENDING


def test_an_approval_of_an_earlier_head_does_not_count_and_is_explained() -> None:
    verdict = judge(change("ckb/family/a/x"), OWNERS, Reviews([by("@alice", head=OLD)]), HEAD)
    assert verdict.state is State.PENDING
    assert any(OLD[:12] in reason and HEAD[:12] in reason for reason in verdict.reasons)


def test_an_owner_who_may_not_write_does_not_count() -> None:
    assert state(by("@alice", may_write=False)) is State.PENDING


def test_nobody_approves_what_they_opened() -> None:
    assert state(by("@alice"), author="@Alice") is State.PENDING


def test_every_path_needs_an_owner_of_its_own() -> None:
    paths = ("ckb/family/a/x", "ckb/general/b/y")
    assert state(by("@alice"), paths=paths) is State.PENDING
    assert state(by("@alice"), by("@bob"), paths=paths) is State.SUCCESS


def test_a_path_that_nobody_owns_fails_and_no_approval_helps() -> None:
    owners = parse_codeowners("/docs/ @alice\n")
    verdict = judge(change("ckb/family/a/x"), owners, Reviews([by("@alice")]), HEAD)
    assert verdict.state is State.FAILURE
    assert "names no owner" in verdict.description


def test_an_owner_who_asks_for_changes_stops_it_and_a_stranger_does_not() -> None:
    assert state(by("@org-member", "@org/knowledge"), objectors=["@alice"]) is State.FAILURE
    assert state(by("@alice"), objectors=["@stranger"]) is State.SUCCESS


def test_a_problem_of_the_files_cannot_be_approved() -> None:
    verdict = judge(change("ckb/a", problems=["ckb/a: a link"]), OWNERS, Reviews([by("@alice")]), HEAD)
    assert verdict.state is State.FAILURE


def test_a_team_that_the_token_cannot_see_is_said_and_not_passed_over() -> None:
    verdict = judge(change("ckb/family/a/x"), OWNERS, Reviews([by("@x")], unseen_teams=["@org/knowledge"]), HEAD)
    assert verdict.state is State.PENDING
    assert any("Members: read" in reason for reason in verdict.reasons)


def test_an_address_in_codeowners_names_no_account() -> None:
    owners = parse_codeowners("/ckb/ alice@example.org\n")
    verdict = judge(change("ckb/family/a/x"), owners, Reviews([by("@alice")]), HEAD)
    assert verdict.state is State.PENDING
    assert any("write @login" in reason for reason in verdict.reasons)


def test_a_description_is_as_long_as_a_status_may_be_and_on_one_line() -> None:
    verdict = judge(change(*(f"ckb/{'x' * 80}/{n}\nz" for n in range(3))), OWNERS, Reviews(), HEAD)
    assert len(verdict.description) <= 140
    assert verdict.description.isprintable()


APPROVAL = st.builds(
    Approval,
    by=st.sampled_from(["@alice", "@bob", "@carol"]),
    names=st.just(()),
    head=st.sampled_from([HEAD, OLD]),
    may_write=st.booleans(),
).flatmap(
    lambda a: st.lists(st.just("@org/knowledge"), max_size=1).map(
        lambda teams: Approval(a.by, (a.by, *teams), a.head, a.may_write)
    )
)
PATHS = st.lists(st.sampled_from(["ckb/family/a", "ckb/general/b", "ckb/x", "ckb/general/c/d"]), unique=True)


@given(PATHS, st.lists(APPROVAL, max_size=5), st.sampled_from(["", "@alice", "@carol"]))
def test_it_passes_exactly_when_each_path_has_an_owners_approval_of_this_head(
    paths: list[str], approvals: list[Approval], author: str
) -> None:
    def covered(path: str) -> bool:
        wanted = {"@bob"} if path.startswith("ckb/general/") else {"@alice", "@org/knowledge"}
        return any(wanted & set(a.names) and a.head == HEAD and a.may_write and a.by != author for a in approvals)

    verdict = judge(change(*paths), OWNERS, Reviews(approvals, author=author), HEAD)
    assert (verdict.state is State.SUCCESS) == all(map(covered, paths))
    assert set(verdict.missing) == {path for path in paths if not covered(path)}


@pytest.mark.parametrize("more", [by("@carol"), by("@bob", head=OLD), by("@eve", may_write=False)])
def test_what_others_say_takes_no_approval_away(more: Approval) -> None:
    assert state(by("@alice"), more) is State.SUCCESS
