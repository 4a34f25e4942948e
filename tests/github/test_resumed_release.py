"""A release that stopped halfway is planned again: the tag is there, its files are not in the open yet."""

from __future__ import annotations

from pathlib import Path

from metainfer.ci.releasing import plan_releases
from metainfer.ci.repository import Checkout
from metainfer.forge.github.releases import Releases
from metainfer.forge.protocol import BOT
from metainfer.release import release, released_versions
from tests.forge.engines import ENGINE
from tests.github.places import Acting


def test_a_release_that_stopped_halfway_is_due_until_it_is_in_the_open(on_stub: Acting, tmp_path: Path) -> None:
    on_stub.publish("sha256:aa")
    on_stub.merge()
    forge, checkout = on_stub.person(on_stub.alice), Checkout(tmp_path)

    def due() -> list[str]:
        return [one.tag for one in plan_releases(checkout, forge, "", "", [ENGINE]).due]

    made = release(forge, ENGINE, BOT)
    assert due() == [made.tag], "tagged, and nothing to download"
    forge.connection.repo.create_git_release(made.tag, made.tag, "Notes.", draft=True)
    assert due() == [made.tag], "a draft that nobody sees"
    file = tmp_path / "SHA256SUMS"
    file.write_bytes(b"sums\n")
    Releases(forge.connection).publish(made.tag, made.tag, "Notes.", {file.name: file})
    assert due() == []


def test_a_tag_of_another_spelling_is_no_release(on_stub: Acting) -> None:
    on_stub.publish("sha256:aa")
    commit = on_stub.merge()
    forge = on_stub.person(on_stub.alice)
    assert forge.create_tag(f"{ENGINE}/vv9.0.0", commit, "by hand\n", BOT)
    assert released_versions(forge, ENGINE) == {}
    assert release(forge, ENGINE, BOT).tag == f"{ENGINE}/v0.1.0"
