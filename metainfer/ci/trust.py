"""What a bundle says, held against what the base commit says: the engine must be what trusted code makes of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.checkpoint.sources import known_model
from metainfer.ci.untrusted import HostileError
from metainfer.errors import MetainferError
from metainfer.generate.manifest import Manifest
from metainfer.generate.regenerate import regenerate

if TYPE_CHECKING:
    from metainfer.ci.bundle import Bundle
    from metainfer.ci.deployment import Deployment
    from metainfer.spec.models import Source

_WHERE = "the bundle"


def require_same_deployment(bundle: Bundle, deployment: Deployment) -> None:
    """Raise HostileError unless the bundle is for this engine, spec and base, and asks a model what the spec says."""
    request, manifest = bundle.request, bundle.manifest
    pairs = (
        ("request.json: engine", request.engine, deployment.spec.name),
        ("request.json: spec_path", request.spec_path, deployment.spec_path),
        ("request.json: base_sha", request.base_sha, deployment.base),
        ("engine/manifest.json: spec", manifest.spec, deployment.spec.resolved()),
        ("engine/manifest.json: agent", manifest.agent and manifest.agent.settings, deployment.settings()),
    )
    complaints = [f"{name} is not what this job was started for" for name, given, wanted in pairs if given != wanted]
    if complaints:
        raise HostileError(_WHERE, complaints)


def require_bill(bundle: Bundle, bill: str) -> None:
    """Raise HostileError unless the manifest says what the job that held the key has booked: `TOKENS,USD`.

    The bundle comes from a job that ran what a model wrote; what that cost, another one knows.
    """
    agent = bundle.manifest.agent
    if agent is None or f"{agent.tokens},{agent.cost_usd!r}" != bill:
        raise HostileError(
            _WHERE, ["engine/manifest.json: agent: tokens and cost are not what was booked for this run"]
        )


def require_reproduced(bundle: Bundle, deployment: Deployment) -> None:
    """Make the engine again from the base's knowledge and compare every byte. HostileError if any differs.

    Runs nothing of the engine: exemplars are folded, and what a model wrote is taken from `units/` as text.
    """
    with tempfile.TemporaryDirectory(prefix="metainfer-bundle-") as scratch:
        folder = bundle.lay_out(Path(scratch))
        try:
            made = regenerate(folder, deployment.ckb_root)
        except MetainferError as error:
            raise HostileError(_WHERE, [f"its engine cannot be made again: {_line(error, scratch)}"]) from None
        except (ValueError, KeyError, RecursionError, SyntaxError) as error:
            raise HostileError(_WHERE, [f"its engine cannot be made again: {type(error).__name__}"]) from None
    differing = sorted(
        path for path in made.files.keys() | bundle.engine.keys() if made.files.get(path) != bundle.engine.get(path)
    )
    if differing:
        shown = [ascii(path)[1:-1][:200] for path in differing]
        raise HostileError(_WHERE, [f"engine/{path}: not what the base's knowledge makes" for path in shown])


def require_known_model(bundle: Bundle, deployment: Deployment, cache: Path) -> None:
    """Hold the model's digest and facts against those of the base's engine, or of the cache, for the very same source.

    The first engine for a source has neither; then the job that judged is believed, which fetched the model itself.
    """
    model = bundle.manifest.model
    for digest, facts in _known(bundle.request.engine, deployment, cache):
        if (digest, facts) != (model.digest, model.facts):
            raise HostileError(_WHERE, ["engine/manifest.json: model is not what this source is known to be"])


def _known(engine: str, deployment: Deployment, cache: Path) -> list[tuple[str, dict[str, object]]]:
    source = deployment.spec.model.source
    found: list[tuple[str, dict[str, object]]] = []
    data = deployment.checkout.read(deployment.base, f"engines/{engine}/manifest.json")
    if data:
        try:
            before = Manifest.model_validate_json(data)
        except ValueError:
            before = None
        if before and before.model.source == source.model_dump(mode="json") and not _names_files(source):
            found.append((before.model.digest, before.model.facts))
    kept = known_model(source, cache=cache, base_dir=deployment.file.parent)
    if kept:
        found.append((kept.digest, kept.facts.model_dump(mode="json")))
    return found


def _names_files(source: Source) -> bool:
    """Whether it names files of the repository, which may change under the same name."""
    return source.path is not None or (source.random is not None and isinstance(source.random.config, str))


def _line(error: MetainferError, scratch: str) -> str:
    text = " ".join(str(error).replace(f"{scratch}/", "").split())
    return ascii(text)[1:-1][:300]
