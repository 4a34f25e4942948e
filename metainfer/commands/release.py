"""`metainfer release` and `metainfer bundle`: tag the engine that is on the base branch, build what people install."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metainfer.commands.context import Workspace
from metainfer.commands.named import engine_name
from metainfer.commands.pr import AsOption, ForgeOption
from metainfer.errors import RefusedError

if TYPE_CHECKING:
    from metainfer.forge.protocol import Forge
    from metainfer.release.tag import Release

EngineArgument = Annotated[str, typer.Argument(help="The engine's name, or engines/NAME.")]
VersionOption = Annotated[str | None, typer.Option(help="X.Y.Z; default: the next one, by what changed.")]


def release(
    engine: EngineArgument,
    version: VersionOption = None,
    assets: Annotated[
        Path | None, typer.Option(help="A folder from `metainfer bundle`: offer its files in a release on GitHub.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be tagged; write nothing.")] = False,
    forge: ForgeOption = None,
    as_: AsOption = None,
) -> None:
    """Tag the merged engine as <engine>/vX.Y.Z. Refused when its evidence is missing, red, or for another tree."""
    from metainfer.forge.identity import identify
    from metainfer.forge.setup import open_forge
    from metainfer.release.tag import plan_release
    from metainfer.release.tag import release as make_release

    root = Workspace.find().root
    opened, name = open_forge(root, forge), engine_name(engine)
    if dry_run:
        made = plan_release(opened, name, version=version)
        typer.echo(f"{'would tag' if made.created else 'already tagged:'} {made.tag} at {made.commit[:12]}")
    else:
        if assets:  # a tag is never moved, so what would not fit it is refused before there is one
            _assets_of(opened, plan_release(opened, name, version=version), assets)
        made = make_release(opened, name, identify(root, as_), version=version)
        typer.echo(f"{'tagged' if made.created else 'already tagged:'} {made.tag} at {made.commit[:12]}")
    for reason in made.reasons:
        typer.echo(f"  {reason.level.name.lower()}: {reason.text}")
    if assets and not dry_run:
        typer.echo(f"released: {_offer(opened, made, assets)}")


def bundle(
    engine: EngineArgument,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("dist"),
    version: VersionOption = None,
    forge: ForgeOption = None,
) -> None:
    """Build what a release offers: wheel, sdist, the engine's records, and SHA256SUMS. Tags nothing."""
    from metainfer.forge.setup import open_forge
    from metainfer.release.bundle import build_bundle
    from metainfer.release.tag import plan_release

    opened, name = open_forge(Workspace.find().root, forge), engine_name(engine)
    plan = plan_release(opened, name, version=version)
    made = build_bundle(opened, name, plan.commit, plan.version, out)
    for file, digest in made.digests().items():
        typer.echo(f"{digest}  {out / file}")


def _offer(opened: Forge, made: Release, assets: Path) -> str:
    from metainfer.forge.github.forge import GitHubForge
    from metainfer.forge.github.releases import Releases
    from metainfer.release.tag import release_notes

    if not isinstance(opened, GitHubForge):
        raise RefusedError("a local forge has tags and no releases; leave --assets out, the files lie where they are")
    files = _assets_of(opened, made, assets)
    title = made.tag.replace("/v", " v")
    return Releases(opened.connection).publish(made.tag, title, release_notes(opened, made), files)


def _assets_of(opened: Forge, made: Release, folder: Path) -> dict[str, Path]:
    """The files to offer, by name. RefusedError unless they were built from exactly this release."""
    from metainfer.release.bundle import read_bundle, require_bundle_of

    built = read_bundle(folder)
    require_bundle_of(opened, made.tag.rpartition("/v")[0], made.commit, made.version, built)
    return {name: folder / name for name in built.files}
