"""Release an engine: one annotated tag, on the commit that brought this engine to the base branch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from metainfer.errors import ConflictError, InputError, RefusedError
from metainfer.files import sha256_bytes
from metainfer.forge.evidence import EVIDENCE, MANIFEST, EngineTree, examine
from metainfer.forge.markdown import inline
from metainfer.forge.markers import INPUT_HASH, one_line, with_trailers
from metainfer.forge.paths import engine_folder
from metainfer.forge.protocol import DEFAULT_BASE, Forge, Identity
from metainfer.release.versions import FIRST, Reason, Version, compare, level_of, next_version

_ATTEMPTS = 5


class ReleaseRefusedError(RefusedError):
    """The engine on the base branch must not be released as it is, or not under that version."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release that exists now. `created` is False when this very engine already had it."""

    tag: str
    version: Version
    commit: str
    created: bool
    reasons: tuple[Reason, ...]
    """What changed since the release before; empty for the first."""


def tag_name(engine: str, version: Version) -> str:
    """`<engine>/vX.Y.Z`."""
    return f"{engine}/v{version}"


def release(
    forge: Forge, engine: str, tagger: Identity, *, version: str | None = None, base: str = DEFAULT_BASE
) -> Release:
    """Tag the engine that is on `base`, as `version` or as the next one by what changed.

    Repeating it changes nothing. Raises ReleaseRefusedError when the engine is not on the base, its records do not
    fit its files, a gate is red or missing, or the version is taken by other files or not above the last.
    """
    commit, after = _releasable(forge, engine, base)
    wanted = Version.parse(version) if version else None
    for _ in range(_ATTEMPTS):
        plan = _plan(forge, engine, commit, after, wanted)
        if not plan.created:
            return plan
        message = _message(engine, plan.version, after, plan.reasons)
        if forge.create_tag(plan.tag, commit, message, tagger):
            return plan
    raise ConflictError(f"{engine}: other releases kept taking the version; look at the tags and try again")


def plan_release(forge: Forge, engine: str, *, version: str | None = None, base: str = DEFAULT_BASE) -> Release:
    """What `release` would do now, refusals included; nothing is tagged."""
    commit, after = _releasable(forge, engine, base)
    return _plan(forge, engine, commit, after, Version.parse(version) if version else None)


def release_notes(forge: Forge, made: Release) -> str:
    """What a release says of itself, in Markdown: verdict, changes, how to install and how to check the files."""
    engine = made.tag.rpartition("/v")[0]
    tree = _engine_at(forge, engine, made.commit)
    assert tree is not None  # it was there when the release was planned
    assert tree.manifest is not None
    assert tree.evidence is not None
    gates = ", ".join(inline(report.gate) for report in tree.evidence.gates)
    parts = [f"**{len(tree.evidence.gates)} gates passed** ({gates}) on commit {made.commit}."]
    if made.reasons:
        parts.append("\n".join(f"- {reason.level.name.lower()}: {inline(reason.text)}" for reason in made.reasons))
    wheel = f"metainfer_engine_{re.sub('[^a-z0-9]+', '_', engine)}-{made.version}-py3-none-any.whl"
    package = tree.manifest.package
    commands = [
        "sha256sum -c SHA256SUMS",
        f"pip install {wheel}",
        f"metainfer model fetch {_spec_of(engine, tree)}   # makes the model folder, and prints where",
        f"python -m {package} fetch --from MODEL_FOLDER   # on another machine: checks a copy of it, and keeps it",
        f"python -m {package} serve",
    ]
    parts.append("\n".join(["```", *commands, "```"]))
    parts.append(
        f"Model `{inline(tree.manifest.model.digest)}`, inputs `{inline(tree.manifest.input_hash)}`. `manifest.json` "
        "says what every file was made from, `evidence.json` what was measured. The archives carry the version in "
        "their `pyproject.toml`; every other file is as the manifest has it."
    )
    return "\n\n".join(parts) + "\n"


def _spec_of(engine: str, tree: EngineTree) -> str:
    """The spec's path as the manifest has it, where that is a plain one: people type it."""
    path = str(tree.record(MANIFEST).get("spec_path"))
    return path if re.fullmatch(r"specs/[A-Za-z0-9][A-Za-z0-9._-]*\.ya?ml", path) else f"specs/{engine}.yaml"


def _releasable(forge: Forge, engine: str, base: str) -> tuple[str, EngineTree]:
    """The commit that brought the engine to `base`, and its files, whose records hold."""
    folder = engine_folder(engine)
    commit = forge.last_change(f"refs/heads/{base}", folder)
    after = _engine_at(forge, engine, commit) if commit else None
    if commit is None or after is None:
        raise ReleaseRefusedError(_not_there(forge, engine, base))
    if after.problems:
        listed = "\n".join(f"  - {problem}" for problem in after.problems)
        raise ReleaseRefusedError(f"{engine} at {commit[:12]} cannot be released:\n{listed}")
    return commit, after


def released_versions(forge: Forge, engine: str) -> dict[Version, str]:
    """Versions that are tagged → the commit of each. Tags of other shapes are not ours and are passed over."""
    prefix = f"{engine}/v"
    found = {}
    for name, commit in forge.tags(prefix).items():
        try:
            version = Version.parse(name.removeprefix(prefix))
        except InputError:
            continue
        if name == tag_name(engine, version):  # `vv1.0.0` is another tag than that of 1.0.0
            found[version] = commit
    return found


def _plan(forge: Forge, engine: str, commit: str, after: EngineTree, wanted: Version | None) -> Release:
    """What a release would be now; `created` False if it is there already."""
    known = released_versions(forge, engine)
    if wanted in known:
        before = _engine_at(forge, engine, known[wanted])
        if before is None or before.files != after.files:
            raise ReleaseRefusedError(
                f"{tag_name(engine, wanted)} exists for other files (commit {known[wanted][:12]}), "
                "and a tag is never moved; release under a new version"
            )
        return Release(tag_name(engine, wanted), wanted, known[wanted], False, ())
    last = max(known, default=None)
    if last is None:
        first = wanted or FIRST
        return Release(tag_name(engine, first), first, commit, True, ())
    before = _engine_at(forge, engine, known[last])
    reasons = tuple(compare(before, after)) if before else ()
    if before and not reasons:
        if wanted:
            raise ReleaseRefusedError(f"exactly these files are already released as {tag_name(engine, last)}")
        return Release(tag_name(engine, last), last, known[last], False, ())
    chosen = wanted or next_version(last, level_of(reasons))
    if chosen <= last:
        raise ReleaseRefusedError(f"version {chosen} is not above the last release, {last}")
    return Release(tag_name(engine, chosen), chosen, commit, True, reasons)


def _engine_at(forge: Forge, engine: str, commit: str) -> EngineTree | None:
    """The engine's folder at a commit, examined; None if it is not there."""
    folder = engine_folder(engine)
    files = {path.removeprefix(folder): data for path, data in forge.read_tree(commit, folder).items()}
    return examine(engine, files) if files else None


def _not_there(forge: Forge, engine: str, base: str) -> str:
    """Why an engine that is not on the base cannot be released, what could be, and what to do."""
    there = sorted({path.split("/")[1] for path in forge.read_tree(f"refs/heads/{base}", "engines") if "/" in path})
    pull = forge.find_open(engine, base)
    todo = (
        f"it waits in pull request #{pull.number}: merge that first"
        if pull
        else "an engine can be released once its pull request is merged"
    )
    return f"{engine} is not on {base}; {todo}. Engines on {base}: {', '.join(there) or 'none'}"


def _message(engine: str, version: Version, tree: EngineTree, reasons: Sequence[Reason]) -> str:
    """What the tag says: the verdict in a line, what changed, and the digests that bind it to its evidence."""
    assert tree.manifest is not None  # examine() found no problem, so both records were read
    assert tree.evidence is not None
    gates = [one_line(report.gate, 40) for report in tree.evidence.gates]
    text = f"{len(gates)} gates passed: {', '.join(gates)}."
    if reasons:
        text += "\n\nSince the last release:\n" + "\n".join(f"- {one_line(reason.text)}" for reason in reasons)
    trailers = {
        INPUT_HASH: tree.manifest.input_hash,
        "Metainfer-Model-Digest": tree.manifest.model.digest,
        "Metainfer-Manifest-Digest": f"sha256:{sha256_bytes(tree.files[MANIFEST])}",
        "Metainfer-Evidence-Digest": f"sha256:{sha256_bytes(tree.files[EVIDENCE])}",
    }
    return with_trailers(f"{engine} v{version}", text, trailers)
