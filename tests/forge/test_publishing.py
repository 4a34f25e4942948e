"""What the local forge alone promises about an engine's pull request; the rest is the contract of all forges."""

from __future__ import annotations

import itertools

import pytest

from metainfer.errors import InputError
from metainfer.forge.local import LocalForge
from metainfer.forge.markers import branch_of
from metainfer.forge.protocol import BOT, Status
from tests.forge.engines import BOB, ENGINE, FOLDER, commit_on, request

BRANCH = f"refs/heads/{branch_of(ENGINE)}"


def test_regenerate_replaces_a_persons_commit_but_keeps_it_reachable(forge: LocalForge) -> None:
    forge.publish(request(forge))
    theirs = commit_on(forge, branch_of(ENGINE), {f"{FOLDER}README.md": b"# by hand\n"})
    assert forge.publish(request(forge, "sha256:bb", regenerate=True)).status is Status.UPDATED
    assert forge.repo.is_ancestor(theirs, "refs/metainfer/pulls/1")
    assert theirs in forge.get(1).comments[-1].text


def test_a_new_pull_request_records_which_one_it_follows(forge: LocalForge) -> None:
    forge.publish(request(forge))
    forge.close(1, BOB)
    forge.publish(request(forge, "sha256:bb"))
    assert forge.get(2).follows == 1


def test_other_engines_and_pull_requests_of_people_do_not_count(forge: LocalForge) -> None:
    forge.publish(request(forge, engine="other-cpu"))
    stored = forge.store.get(1)
    assert stored
    # The same branch and base, open, but without the bot's marker: somebody else's pull request.
    human = stored.pull.model_copy(update={"number": 2, "engine": ENGINE, "branch": branch_of(ENGINE), "body": "Mine."})
    assert forge.repo.move_refs([forge.store.change(human, None, "opened", BOB)], "open")
    outcome = forge.publish(request(forge))
    assert (outcome.status, outcome.number) == (Status.CREATED, 3)


def test_the_bot_cannot_approve(forge: LocalForge) -> None:
    forge.publish(request(forge))
    with pytest.raises(InputError, match="bot cannot approve"):
        forge.approve(1, BOT)


def test_history_is_only_ever_added_to(forge: LocalForge) -> None:
    forge.publish(request(forge))
    seen = [forge.repo.commit_at("refs/metainfer/pulls/1")]
    forge.comment(1, BOB, "looks fine")
    seen.append(forge.repo.commit_at("refs/metainfer/pulls/1"))
    forge.publish(request(forge, "sha256:bb"))
    seen.append(forge.repo.commit_at("refs/metainfer/pulls/1"))
    for older, newer in itertools.pairwise(seen):
        assert older
        assert newer
        assert older != newer
        assert forge.repo.is_ancestor(older, newer)
