"""Which version an engine gets, from what changed since its last tag.

Semantic versions, from the point of view of whoever deploys the engine:

- **major**: something that a client or an operator relies on goes away or becomes another thing: the model, the
  package's name, the platform, a serving feature, a limit that shrinks.
- **minor**: something is added, or answers may differ in their last digits for a reason that was decided: a new
  feature, a larger limit, other precision, other contracts or versions of them, other dependencies.
- **patch**: the same engine to its users: faster or cleaner code for the same contracts, documentation, evidence.

The first version is 0.1.0. Below 1.0.0 a major change raises the minor number, as semantic versioning allows;
1.0.0 is a promise, so a person makes it by naming the version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from metainfer.errors import InputError
from metainfer.forge.evidence import EVIDENCE, MANIFEST, EngineTree

_VERSION = re.compile(r"v?(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})")
_FEATURES = ("chat", "completions", "streaming", "logprobs", "stop", "seed")
_LIMITS = ("max_model_len", "max_concurrency")
# Parts of a spec that say how an engine is made, found or judged, and not what it does.
_MEANS = frozenset({"generation", "goals", "units", "name"})


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """`major.minor.patch`; ordered as versions are."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read `1.2.3` or `v1.2.3`. Raises InputError on anything else, pre-releases included."""
        found = _VERSION.fullmatch(text)
        if not found:
            raise InputError(f"{text!r} is not a version; write MAJOR.MINOR.PATCH, for example 0.1.0")
        return cls(*map(int, found.groups()))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


FIRST = Version(0, 1, 0)


class Level(IntEnum):
    """How much a change matters to whoever deploys the engine."""

    NONE = 0
    PATCH = 1
    MINOR = 2
    MAJOR = 3


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that changed, in words."""

    level: Level
    text: str


def next_version(previous: Version | None, level: Level) -> Version:
    """The version after `previous` (None: there is none yet) for a change of `level`."""
    if previous is None:
        return FIRST
    if level is Level.NONE:
        return previous
    if previous.major == 0 and level is Level.MAJOR:
        level = Level.MINOR
    match level:
        case Level.MAJOR:
            return Version(previous.major + 1, 0, 0)
        case Level.MINOR:
            return Version(previous.major, previous.minor + 1, 0)
        case _:
            return Version(previous.major, previous.minor, previous.patch + 1)


def compare(before: EngineTree, after: EngineTree) -> list[Reason]:
    """What changed between two releases of an engine, most important first; empty when they are the same files."""
    if before.files == after.files:
        return []
    old, new = before.record(MANIFEST), after.record(MANIFEST)
    reasons = [
        *_identity(old, new),
        *_serving(_mapping(old, "facts"), _mapping(new, "facts")),
        *_limits(_mapping(old, "spec", "workload"), _mapping(new, "spec", "workload")),
        *_knowledge(old, new),
    ]
    reasons += _rest_of_spec(_mapping(old, "spec"), _mapping(new, "spec"), bool(reasons))
    reasons += _files(before.files, after.files)
    return sorted(reasons, key=lambda reason: -reason.level)


def level_of(reasons: Sequence[Reason]) -> Level:
    """The greatest level among the reasons."""
    return max((reason.level for reason in reasons), default=Level.NONE)


def _identity(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Reason]:
    whats = {
        "the model": (("model", "digest"), Level.MAJOR),
        "the package's name": (("package",), Level.MAJOR),
        "the platform": (("facts", "platform"), Level.MAJOR),
        "the weights' precision": (("facts", "weight_dtype"), Level.MINOR),
    }
    found = []
    for what, (path, level) in whats.items():
        before, after = _value(old, *path), _value(new, *path)
        if before != after:
            found.append(Reason(level, f"{what} changed from {before} to {after}"))
    return found


def _serving(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Reason]:
    lost = [name for name in _FEATURES if old.get(name) and not new.get(name)]
    gained = [name for name in _FEATURES if new.get(name) and not old.get(name)]
    return [Reason(Level.MAJOR, f"serves no {name} any more") for name in lost] + [
        Reason(Level.MINOR, f"serves {name}") for name in gained
    ]


def _limits(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Reason]:
    found = []
    for name in _LIMITS:
        before, after = old.get(name), new.get(name)
        if isinstance(before, int) and isinstance(after, int) and before != after:
            level = Level.MAJOR if after < before else Level.MINOR
            found.append(Reason(level, f"{name} went from {before} to {after}"))
    return found


def _knowledge(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Reason]:
    found = []
    before, after = _contracts(old), _contracts(new)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        found.append(Reason(Level.MINOR, f"other contracts or versions of them: {', '.join(changed)}"))
    if sorted(old.get("dependencies", [])) != sorted(new.get("dependencies", [])):
        found.append(Reason(Level.MINOR, "the dependencies changed"))
    return found


def _contracts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    listed = manifest.get("contracts")
    entries = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    return {str(entry.get("id")): entry.get("version") for entry in entries}


def _rest_of_spec(old: Mapping[str, Any], new: Mapping[str, Any], explained: bool) -> list[Reason]:
    """Spec keys that changed and that none of the rules above has looked at: taken as minor, to be careful."""
    judged = _MEANS | {"model"}
    if explained:
        judged |= {"workload", "serving", "precision", "target"}
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key not in judged)
    return [Reason(Level.MINOR, f"the spec's {key} changed") for key in changed]


def _files(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> list[Reason]:
    changed = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    code = [path for path in changed if not _is_about(path)]
    if code:
        return [Reason(Level.PATCH, f"code changed in {len(code)} file(s)")]
    return [Reason(Level.PATCH, "only documentation, tests or evidence changed")]


def _is_about(path: str) -> bool:
    """Whether a file is about the engine rather than of it."""
    return path in (MANIFEST, EVIDENCE) or path.endswith(".md") or path.startswith("tests/")


def _mapping(record: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    value = _value(record, *path)
    return value if isinstance(value, Mapping) else {}


def _value(record: Any, *path: str) -> Any:
    for key in path:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record
