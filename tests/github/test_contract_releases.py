"""Releases are made in steps, none of which shows half of one. Only GitHub has them."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from metainfer.errors import ConflictError
from metainfer.forge.github.releases import Releases
from metainfer.forge.protocol import BOT
from tests.github.emulators import EMULATORS
from tests.github.places import Acting, together

TAG = "tiny-cpu/v1.0.0"
EVERYWHERE = ["stub", *(pytest.param(name, marks=pytest.mark.github) for name in EMULATORS)]
pytestmark = pytest.mark.parametrize("place", EVERYWHERE, indirect=True)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Two files of a release, by the names that they get there."""
    contents = {"tiny_cpu-1.0.0-py3-none-any.whl": b"wheel", "SHA256SUMS": b"sums\n"}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    return {name: tmp_path / name for name in contents}


def tagged(place: Acting) -> Releases:
    assert place.forge.create_tag(TAG, place.base(), "tiny-cpu 1.0.0\n", BOT)
    return Releases(place.forge.connection)


def publish(releases: Releases, files: dict[str, Path]) -> str:
    return releases.publish(TAG, "tiny-cpu 1.0.0", "Notes.", files)


def shown(place: Acting) -> list[tuple[str, bool, dict[str, bytes]]]:
    """Tag, whether it is a draft, and files of all releases, as somebody who may write sees them."""
    repo = place.person(place.alice).connection.repo
    headers = {"Authorization": f"Bearer {place.account.tokens['alice']}", "Accept": "application/octet-stream"}

    def content(url: str) -> bytes:
        got = httpx.get(url, headers=headers)
        return b"" if got.headers["content-type"].startswith("application/json") else got.content

    return [
        (release.tag_name, release.draft, {asset.name: content(asset.url) for asset in release.get_assets()})
        for release in repo.get_releases()
    ]


def test_a_release_is_shown_with_all_its_files(place: Acting, files: dict[str, Path]) -> None:
    url = publish(tagged(place), files)
    assert url.startswith("http")
    ((tag, draft, found),) = shown(place)
    assert (tag, draft) == (TAG, False)
    assert sorted(found) == sorted(files)
    if place.name == "stub":  # emulate keeps no content
        assert found == {name: path.read_bytes() for name, path in files.items()}


def test_a_release_that_is_there_is_left_alone(place: Acting, files: dict[str, Path]) -> None:
    releases = tagged(place)
    url = publish(releases, files)
    with place.nothing_written():
        assert publish(releases, files) == url
        assert publish(Releases(place.another().connection), files) == url


def test_a_release_goes_on_where_the_last_run_stopped(place: Acting, files: dict[str, Path], tmp_path: Path) -> None:
    releases = tagged(place)
    draft = place.forge.connection.repo.create_git_release(TAG, "tiny-cpu 1.0.0", "Notes.", draft=True)
    whole, other = files
    (tmp_path / "half").write_bytes(b"half of it")
    draft.upload_asset(str(files[whole]), name=whole, content_type="application/octet-stream")
    draft.upload_asset(str(tmp_path / "half"), name=other, content_type="application/octet-stream")
    draft.upload_asset(str(tmp_path / "half"), name="of-another-try", content_type="application/octet-stream")
    before = len(place.writes())
    publish(releases, files)
    done = [call.split()[0] for call in place.writes()[before:]]
    assert done == ["DELETE", "DELETE", "POST", "PATCH"]
    ((_, is_draft, found),) = shown(place)
    assert not is_draft
    assert sorted(found) == sorted(files)


def test_a_release_with_other_files_is_a_conflict(place: Acting, files: dict[str, Path], tmp_path: Path) -> None:
    releases = tagged(place)
    publish(releases, files)
    (tmp_path / "SHA256SUMS").write_bytes(b"other sums\n")
    with place.nothing_written(), pytest.raises(ConflictError, match="raise the version"):
        publish(releases, files)
    del files["SHA256SUMS"]
    with place.nothing_written(), pytest.raises(ConflictError, match="raise the version"):
        publish(releases, files)


def test_two_releases_of_a_tag_at_once_are_one(place: Acting, files: dict[str, Path]) -> None:
    tagged(place)
    rivals = [Releases(place.another().connection) for _ in range(2)]
    results = together([lambda r=r: publish(r, files) for r in rivals])  # type: ignore[misc]
    assert all(isinstance(result, str) for result in results), results
    ((_, draft, found),) = shown(place)
    assert not draft
    assert sorted(found) == sorted(files)
