"""Releases and the files that hang on them."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Response

from tests.github.stub.access import Body, Here, at, page
from tests.github.stub.refusals import Refusal, invalid, not_found
from tests.github.stub.shapes import Json, html_url, node_id, repo_url, user
from tests.github.stub.world import Asset, Release, Repo, World, now

routes = APIRouter(prefix="/repos/{owner}/{repo}/releases")
uploads = APIRouter(prefix="/repos/{owner}/{repo}/releases")
"""On a host of its own at github.com, below /api/uploads on other servers."""
Reads = Annotated[Here, at("contents")]
Writes = Annotated[Here, at("contents", "write", "write")]


class ChangedRelease(Body):
    tag_name: str | None = None
    target_commitish: str | None = None
    name: str | None = None
    body: str | None = None
    draft: bool | None = None
    prerelease: bool | None = None
    make_latest: str | None = None


class NewRelease(ChangedRelease):
    tag_name: str
    draft: bool = False
    prerelease: bool = False
    generate_release_notes: bool = False


class ChangedAsset(Body):
    name: str | None = None
    label: str | None = None
    state: str | None = None


@routes.get("")
async def list_releases(here: Reads) -> Any:
    found = [release for release in reversed(here.repo.releases) if not release.draft or here.has_role("write")]
    return [_release(here.world, here.repo, release) for release in page(here, found)]


@routes.post("", status_code=201)
async def create_release(here: Writes, body: NewRelease) -> Any:
    repo = here.repo
    if any(release.tag == body.tag_name and not release.draft for release in repo.releases):
        raise invalid("Release", "tag_name", "already_exists")
    target = body.target_commitish or repo.default_branch
    made = Release(
        here.world.next_id(), body.tag_name, target, body.name, body.body, body.draft, body.prerelease, here.user
    )
    if not body.draft:
        _publish(here, made)
    repo.releases.append(made)
    return _release(here.world, repo, made)


def _publish(here: Here, release: Release) -> None:
    """Give the release its tag; GitHub makes one at the target where there is none."""
    bare = here.repo.bare
    if bare.tip(f"refs/tags/{release.tag}") is None:
        sha = bare.commit_at(f"refs/heads/{release.target}") or bare.commit_at(release.target)
        if sha is None:
            raise invalid("Release", "target_commitish", "invalid")
        bare.set_ref(f"refs/tags/{release.tag}", sha)
    release.published_at = now()


@routes.get("/latest")
async def latest_release(here: Reads) -> Any:
    found = [release for release in here.repo.releases if not release.draft and not release.prerelease]
    if not found:
        raise not_found()
    return _release(here.world, here.repo, found[-1])


@routes.get("/tags/{tag:path}")
async def release_of_tag(here: Reads, tag: str) -> Any:
    """Drafts are not found by their tag."""
    found = next((release for release in here.repo.releases if release.tag == tag and not release.draft), None)
    if found is None:
        raise not_found()
    return _release(here.world, here.repo, found)


@routes.get("/assets/{asset_id}")
async def get_asset(here: Reads, asset_id: int) -> Any:
    release, asset = _find_asset(here, asset_id)
    if "octet-stream" in here.request.headers.get("accept", ""):
        asset.downloads += 1
        return Response(asset.data, media_type=asset.content_type)
    return _asset(here.world, here.repo, release, asset)


@routes.patch("/assets/{asset_id}")
async def change_asset(here: Writes, asset_id: int, body: ChangedAsset) -> Any:
    release, asset = _find_asset(here, asset_id)
    asset.name, asset.label = body.name or asset.name, body.label if body.label is not None else asset.label
    return _asset(here.world, here.repo, release, asset)


@routes.delete("/assets/{asset_id}", status_code=204)
async def delete_asset(here: Writes, asset_id: int) -> None:
    release, asset = _find_asset(here, asset_id)
    release.assets.remove(asset)


@routes.get("/{release_id}")
async def get_release(here: Reads, release_id: int) -> Any:
    return _release(here.world, here.repo, _find(here, release_id))


@routes.patch("/{release_id}")
async def change_release(here: Writes, release_id: int, body: ChangedRelease) -> Any:
    release = _find(here, release_id)
    given = body.model_dump(exclude_unset=True, exclude={"make_latest"})
    tag, shown = given.get("tag_name", release.tag), not given.get("draft", release.draft)
    if shown and any(other.tag == tag and not other.draft and other is not release for other in here.repo.releases):
        raise invalid("Release", "tag_name", "already_exists")
    names = {"tag_name": "tag", "target_commitish": "target"}
    for name, value in given.items():
        setattr(release, names.get(name, name), value)
    if given.get("draft") is False and release.published_at is None:
        _publish(here, release)
    return _release(here.world, here.repo, release)


@routes.delete("/{release_id}", status_code=204)
async def delete_release(here: Writes, release_id: int) -> None:
    here.repo.releases.remove(_find(here, release_id))


@routes.get("/{release_id}/assets")
async def list_assets(here: Reads, release_id: int) -> Any:
    release = _find(here, release_id)
    return [_asset(here.world, here.repo, release, asset) for asset in page(here, release.assets)]


@uploads.post("/{release_id}/assets", status_code=201)
async def upload_asset(here: Writes, release_id: int, name: str, label: str | None = None) -> Any:
    release = _find(here, release_id)
    data = await here.request.body()
    content_type = here.request.headers.get("content-type", "")
    if not data or not content_type:
        raise Refusal(400, "Bad Content-Length or Content-Type")
    if any(asset.name == name for asset in release.assets):
        raise invalid("ReleaseAsset", "name", "already_exists")
    kept = "".join(c if c.isalnum() or c in ".-_+" else "." for c in name)  # as GitHub renames them
    asset = Asset(here.world.next_id(), kept, label, content_type, data, here.user)
    release.assets.append(asset)
    return _asset(here.world, here.repo, release, asset)


def _find(here: Here, number: int) -> Release:
    found = next((release for release in here.repo.releases if release.id == number), None)
    if found is None or (found.draft and not here.has_role("write")):
        raise not_found()
    return found


def _find_asset(here: Here, number: int) -> tuple[Release, Asset]:
    for release in here.repo.releases:
        for asset in release.assets:
            if asset.id == number:
                return release, asset
    raise not_found()


def _release(world: World, repo: Repo, release: Release) -> Json:
    url = f"{repo_url(world, repo)}/releases/{release.id}"
    page_url = f"{html_url(world, repo)}/releases/tag/{release.tag}"
    uploads_at = f"{world.base}/api/uploads/repos/{repo.full_name}/releases/{release.id}/assets{{?name,label}}"
    zips = {kind: f"{repo_url(world, repo)}/{kind}/{release.tag}" for kind in ("tarball", "zipball")}
    return {
        "id": release.id,
        "node_id": node_id("Release", release.id),
        "url": url,
        "html_url": page_url,
        "assets_url": f"{url}/assets",
        "upload_url": uploads_at,
        "tarball_url": None if release.draft else zips["tarball"],
        "zipball_url": None if release.draft else zips["zipball"],
        "tag_name": release.tag,
        "target_commitish": release.target,
        "name": release.name,
        "body": release.body,
        "draft": release.draft,
        "prerelease": release.prerelease,
        "immutable": False,
        "created_at": release.created_at,
        "published_at": release.published_at,
        "author": user(world, release.author),
        "assets": [_asset(world, repo, release, asset) for asset in release.assets],
    }


def _asset(world: World, repo: Repo, release: Release, asset: Asset) -> Json:
    return {
        "id": asset.id,
        "node_id": node_id("ReleaseAsset", asset.id),
        "url": f"{repo_url(world, repo)}/releases/assets/{asset.id}",
        "browser_download_url": f"{html_url(world, repo)}/releases/download/{release.tag}/{asset.name}",
        "name": asset.name,
        "label": asset.label,
        "state": "uploaded",
        "content_type": asset.content_type,
        "size": len(asset.data),
        "digest": f"sha256:{hashlib.sha256(asset.data).hexdigest()}",
        "download_count": asset.downloads,
        "created_at": asset.created_at,
        "updated_at": asset.created_at,
        "uploader": user(world, asset.uploader),
    }
