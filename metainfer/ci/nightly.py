"""What time does to a repository: engines that are not what their inputs make, and knowledge that does not hold."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metainfer.ci.affected import Asked, Change, affected_engines
from metainfer.ci.repository import Checkout
from metainfer.errors import MetainferError
from metainfer.forge.markdown import code, inline
from metainfer.generate.manifest import altered_files, read_manifest
from metainfer.generate.regenerate import differences, regenerate
from metainfer.pipeline.knowledge import export_knowledge


@dataclass(frozen=True)
class Drift:
    """One engine's folder on the branch. `altered`: somebody edited it. `behind`: its inputs would make another now."""

    engine: str
    altered: Sequence[str] = ()
    behind: Sequence[str] = ()


@dataclass(frozen=True)
class NightReport:
    """What was found; `audit` holds a line for each problem of the knowledge base, None if it was not audited."""

    commit: str
    drifts: Sequence[Drift]
    change: Change
    audit: Sequence[str] | None = None

    @property
    def good(self) -> bool:
        """Whether nobody needs to do anything."""
        return not (self.audit or self.change.broken or any(one.altered or one.behind for one in self.drifts))


def look_around(checkout: Checkout, commit: str, cache: Path, audit: Sequence[str] | None) -> NightReport:
    """Compare every engine at a commit with what it says it is made of. Runs no engine."""
    commit = checkout.commit(commit)
    change = affected_engines(checkout, commit, commit, cache, Asked(behind=True))
    behind = {one.engine: [reason.words for reason in one.reasons] for one in change.affected}
    with tempfile.TemporaryDirectory(prefix="metainfer-nightly-") as scratch:
        ckb = export_knowledge(checkout, commit, Path(scratch))
        names = sorted({path.split("/")[1] for path in checkout.tree(commit, "engines") if path.count("/") > 1})
        drifts = [
            Drift(name, _altered(checkout, commit, name, Path(scratch), ckb), behind.pop(name, ())) for name in names
        ]
    drifts += [Drift(name, (), reasons) for name, reasons in behind.items()]
    return NightReport(commit, drifts, change, audit)


def _altered(checkout: Checkout, commit: str, engine: str, scratch: Path, ckb: Path) -> list[str]:
    """What differs from what is made again or, where knowledge moved on since, from the manifest's own digests."""
    prefix = f"engines/{engine}/"
    folder = scratch / engine
    for path, data in checkout.read_tree(commit, prefix).items():
        target = folder / path.removeprefix(prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    try:
        manifest = read_manifest(folder)
        made = regenerate(folder, ckb)
    except MetainferError as error:
        return [str(error).replace(f"{folder}/", "")]
    if made.manifest.input_hash != manifest.input_hash:
        return altered_files(folder, manifest)
    return differences(folder, made)


def markdown(report: NightReport) -> str:
    """The report for a summary or an issue."""
    lines = [f"### {'Nothing to do' if report.good else 'To be looked at'} at {code(report.commit[:12])}", ""]
    for one in report.drifts:
        words = [f"edited by hand: {inline('; '.join(one.altered), 400)}"] if one.altered else []
        words += [f"behind: {inline('; '.join(one.behind), 400)}"] if one.behind else []
        lines.append(f"- {code(one.engine)}: {'; '.join(words) or 'as its inputs make it'}")
    lines += [f"- {code(one.spec_path)}: {inline(one.problem)}" for one in report.change.broken]
    if report.audit is None:
        lines += ["", "The knowledge base was not audited (`metainfer ckb audit` does)."]
    else:
        lines += ["", "The knowledge base holds together." if not report.audit else "The knowledge base:"]
        lines += [f"- {inline(line)}" for line in report.audit[:50]]
    return "\n".join(lines) + "\n"
