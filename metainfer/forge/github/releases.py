"""Releases on GitHub: a draft first, then its files, then in the open, so that nobody ever sees half of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.errors import ConflictError
from metainfer.files import sha256_bytes
from metainfer.forge.github.connect import Connection

if TYPE_CHECKING:
    from github.GitRelease import GitRelease
    from github.GitReleaseAsset import GitReleaseAsset

ALREADY = 422
"""GitHub's answer to a second release for a tag, and to a second file of a name."""


class Releases:
    """Publishes releases of tags that exist. A second call goes on where the first one stopped."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def publish(self, tag: str, title: str, notes: str, files: Mapping[str, Path]) -> str:
        """Make the release of `tag` hold exactly `files` (name to path), and show it. Returns its address.

        A release that is in the open already is left as it is: ConflictError if its files are not these.
        """
        release = self._find(tag)
        if release is None:
            release = self._draft(tag, title, notes)
        if not release.draft:
            self._must_hold(release, tag, files)
            return str(release.html_url)
        assets = self._assets(release)
        for name, asset in assets.items():
            if name not in files or not _is_whole(asset, files[name]):
                self._delete(asset)
        for name, path in files.items():
            if name not in assets or not _is_whole(assets[name], path):
                self._upload(release, name, path)
        number = release.id
        self.connection.write(
            f"publishing the release {tag}",
            lambda: bool(self.connection.request("PATCH", self._path(number), {"draft": False})),
            lambda: None if (now := self._find(tag)) is None or now.draft else True,
        )
        shown = self._find(tag)
        return str((shown or release).html_url)

    def is_shown(self, tag: str) -> bool:
        """Whether the release of a tag is in the open."""
        found = self._find(tag)
        return found is not None and not found.draft

    # Helpers

    def _draft(self, tag: str, title: str, notes: str) -> GitRelease:
        """A new draft. GitHub takes any number for one tag: where another run made one first, that one is kept."""
        made = self.connection.write(
            f"drafting the release {tag}",
            lambda: self.connection.repo.create_git_release(tag, name=title, message=notes, draft=True),
            lambda: self._find(tag),
            taken={ALREADY},
        )
        first = self._find(tag) or made
        if first.id != made.id:
            self._remove("a draft too many", self._path(made.id))
        return first

    def _find(self, tag: str) -> GitRelease | None:
        """The release of a tag, drafts among them, which the lookup by tag does not see."""
        found = self.connection.read(
            "listing releases", lambda: [r for r in self.connection.repo.get_releases() if r.tag_name == tag]
        )
        return min(found, key=lambda release: (release.draft, release.id), default=None)

    def _assets(self, release: GitRelease) -> dict[str, GitReleaseAsset]:
        found = self.connection.read("listing a release's files", lambda: list(release.get_assets()))
        return {asset.name: asset for asset in found}

    def _upload(self, release: GitRelease, name: str, path: Path) -> None:
        def there() -> GitReleaseAsset | None:
            asset = self._assets(release).get(name)
            if asset is None or _is_whole(asset, path):
                return asset
            self._delete(asset)  # an upload that broke off leaves one of the name without its content
            return None

        self.connection.write(
            f"uploading {name}",
            lambda: release.upload_asset(str(path), name=name, content_type="application/octet-stream"),
            there,
            taken={ALREADY},
        )

    def _delete(self, asset: GitReleaseAsset) -> None:
        self._remove(asset.name, f"/repos/{self.connection.address.slug}/releases/assets/{asset.id}")

    def _remove(self, what: str, path: str) -> None:
        def gone() -> bool | None:
            found = self.connection.find(f"looking for {what}", lambda: self.connection.request("GET", path))
            return True if found is None else None

        def delete() -> bool:
            self.connection.request("DELETE", path)
            return True

        self.connection.write(f"removing {what}", delete, gone, taken={404})

    def _must_hold(self, release: GitRelease, tag: str, files: Mapping[str, Path]) -> None:
        assets = self._assets(release)
        if sorted(assets) != sorted(files) or not all(_is_whole(assets[name], path) for name, path in files.items()):
            raise ConflictError(
                f"the release {tag} is published with other files ({', '.join(sorted(assets)) or 'none'}); a release "
                "is never changed: raise the version"
            )

    def _path(self, number: int) -> str:
        return f"/repos/{self.connection.address.slug}/releases/{number}"


def _is_whole(asset: GitReleaseAsset, path: Path) -> bool:
    """Whether GitHub holds all of a file: by its digest, or by size where the server is too old to tell digests."""
    if asset.state != "uploaded" or asset.size != path.stat().st_size:
        return False
    digest = asset.raw_data.get("digest")
    return digest is None or digest == f"sha256:{sha256_bytes(path.read_bytes())}"
