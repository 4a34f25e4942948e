"""What a job may leave for the one that publishes, and the means to spoil it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metainfer.ci.publishing import publish_bundle
from metainfer.files import pretty_json, sha256_bytes
from metainfer.forge.protocol import PublishOutcome
from tests.ci.repositories import Scene
from tests.ckb.lesson import lesson

TOKEN = "ghs_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
PACKAGE = "tiny_qwen3"


def publish(scene: Scene, report: Path, **options: Any) -> PublishOutcome:
    return publish_bundle(
        scene.bundle,
        report,
        scene.deployment,
        scene.forge,
        cache=scene.cache,
        **{"environment": {}} | options,
    )


def proposal(scene: Scene, **changes: Any) -> dict[str, Any]:
    return lesson(scene.deployment.ckb_root, "a reviewer", **changes)


Spoil = Callable[[Scene, Path], None]
ATTACKS: list[tuple[str, Spoil, str]] = []


def attack(message: str) -> Callable[[Spoil], Spoil]:
    """Lists a function that spoils what jobs left; `message` says what has to be noticed."""

    def keep(spoil: Spoil) -> Spoil:
        ATTACKS.append((spoil.__name__, spoil, message))
        return spoil

    return keep


def put(scene: Scene, path: str, data: bytes | str = b"x = 1\n", *, listed: bool = True) -> Path:
    """A file in the bundle; under engine/ also in the manifest, so that it is not refused for that alone."""
    file = scene.bundle / path
    file.parent.mkdir(parents=True, exist_ok=True)
    data = data.encode() if isinstance(data, str) else data
    file.write_bytes(data)
    if listed and path.startswith("engine/"):
        edit_manifest(scene, lambda m: m["files"].__setitem__(path.removeprefix("engine/"), sha256_bytes(data)))
    return file


def edit_manifest(scene: Scene, change: Callable[[dict[str, Any]], Any]) -> None:
    file = scene.bundle / "engine/manifest.json"
    manifest = json.loads(file.read_bytes())
    change(manifest)
    file.write_bytes(pretty_json(manifest))


def edit_request(scene: Scene, **changes: Any) -> None:
    file = scene.bundle / "request.json"
    file.write_bytes(pretty_json({**json.loads(file.read_bytes()), **changes}))


def edit_evidence(report: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = report / "evidence.json"
    evidence = json.loads(file.read_bytes())
    change(evidence)
    file.write_bytes(pretty_json(evidence))
