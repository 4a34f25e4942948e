"""`metainfer doctor --github`: what a repository's settings lack, and the step that mends each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from metainfer.ci.actions import say
from metainfer.commands.context import Workspace
from metainfer.errors import ExitCode, InputError
from metainfer.forge.setup import open_forge

_MARKS = {"ok": "ok     ", "missing": "missing", "unread": "unread ", "advice": "advice "}


def examine_github(forge: str | None, checks: Sequence[str]) -> ExitCode:
    """Print every point. RED if a setting is missing, ENVIRONMENT if none is but some cannot be read."""
    from metainfer.forge.github.forge import GitHubForge
    from metainfer.forge.github.settings.examine import examine

    root = Workspace.find().root
    opened = open_forge(root, forge)
    if not isinstance(opened, GitHubForge):
        raise InputError(f"{opened.address()} is not on GitHub; name a repository: --forge github:OWNER/NAME")
    counts = dict.fromkeys(_MARKS, 0)
    last = ""
    for heading, point in examine(opened.connection, runners_of(root), checks):
        if heading != last:
            say(f"{heading}:")
            last = heading
        detail = f": {point.detail}" if point.detail else ""
        say(f"  {_MARKS[point.state]} {point.what}{detail}")
        if point.step:
            say(f"          do: {point.step}")
        counts[point.state] += 1
    say(f"{counts['missing']} missing, {counts['unread']} could not be read, {counts['advice']} advised")
    if counts["missing"]:
        return ExitCode.RED
    return ExitCode.ENVIRONMENT if counts["unread"] else ExitCode.OK


def runners_of(root: Path) -> Mapping[str, Sequence[str]]:
    """The platforms of the work tree's specs → the labels of the runner that each needs."""
    from metainfer.ci.matrix import runner_labels
    from metainfer.spec.document import DocumentError
    from metainfer.spec.load import load_spec

    platforms = set()
    for path in sorted([*(root / "specs").glob("*.yaml"), *(root / "specs").glob("*.yml")]):
        try:
            platforms.add(load_spec(path).target.platform)
        except DocumentError:
            say(f"note: {path.name} is not valid, and its platform not known; see `metainfer spec check`", error=True)
    return {platform: runner_labels(platform) for platform in sorted(platforms)}
