"""Which engines a push brought to the branch that have no release yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.ci.repository import NO_COMMIT, Checkout
from metainfer.errors import MetainferError
from metainfer.release.tag import plan_release

if TYPE_CHECKING:
    from metainfer.forge.protocol import Forge


@dataclass(frozen=True)
class Due:
    """A release that would be made now."""

    engine: str
    tag: str
    commit: str


@dataclass(frozen=True)
class ReleasePlan:
    """Releases that are due, and engines that cannot be released, each with the reason."""

    due: Sequence[Due] = ()
    refused: Sequence[tuple[str, str]] = ()


def plan_releases(checkout: Checkout, forge: Forge, base: str, head: str, engines: Sequence[str] = ()) -> ReleasePlan:
    """What `base..head` changed below engines/, or the `engines` that are named, if no release holds them yet.

    On GitHub one that is tagged is due as long as its release is not in the open: an earlier run stopped in between.
    """
    if not engines:
        changed = (
            checkout.changed(checkout.commit(base), checkout.commit(head), ["engines"])
            if base != NO_COMMIT
            else list(checkout.tree(checkout.commit(head), "engines"))
        )
        engines = sorted({path.split("/")[1] for path in changed if path.count("/") > 1})
        gone = {name for name in engines if not checkout.tree(checkout.commit(head), f"engines/{name}")}
        engines = [name for name in engines if name not in gone]
    due, refused = [], []
    for engine in engines:
        try:
            plan = plan_release(forge, engine)
        except MetainferError as error:
            refused.append((engine, str(error)))
            continue
        if plan.created or not _is_shown(forge, plan.tag):
            due.append(Due(engine, plan.tag, plan.commit))
    return ReleasePlan(due, refused)


def _is_shown(forge: Forge, tag: str) -> bool:
    from metainfer.forge.github.forge import GitHubForge
    from metainfer.forge.github.releases import Releases

    return not isinstance(forge, GitHubForge) or Releases(forge.connection).is_shown(tag)
