"""Which engines does a change affect, and why: found by reading two commits, without a model or running code."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from metainfer.checkpoint.facts import ModelFacts
from metainfer.checkpoint.sources import known_model
from metainfer.ci.repository import NO_COMMIT, Checkout
from metainfer.ckb.facts import Facts
from metainfer.ckb.routing import route
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError, MetainferError
from metainfer.generate.inputs import generator
from metainfer.generate.manifest import Manifest
from metainfer.pipeline.knowledge import export_knowledge
from metainfer.spec.load import load_named_spec
from metainfer.spec.models import Spec

Kind = Literal["asked", "spec", "knowledge", "generator", "behind"]
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Reason:
    """Why an engine is to be made again."""

    kind: Kind
    words: str


@dataclass(frozen=True)
class Affected:
    """One engine to make."""

    engine: str
    spec_path: str
    platform: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Broken:
    """A spec that cannot be read; the others are planned all the same."""

    spec_path: str
    problem: str


@dataclass(frozen=True)
class Change:
    """What lies between two commits for engines. `deleted`: specs that are gone, by the engine's name."""

    base: str
    head: str
    affected: tuple[Affected, ...] = ()
    unaffected: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    broken: tuple[Broken, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What a person wants planned beside what changed."""

    specs: Sequence[str] = ()
    """Paths or names; only these are planned, whatever changed."""
    every: bool = False
    behind: bool = False
    """Also those whose engine is not what the head's inputs make, e.g. since an earlier run was red."""


def affected_engines(checkout: Checkout, base: str, head: str, cache: Path, asked: Asked | None = None) -> Change:
    """The engines that `base..head` affects. `base` of zeros is the beginning: every spec is new.

    Raises InputError for commits or specs that are not there.
    """
    asked = asked or Asked()
    head = checkout.commit(head)
    base = checkout.commit(base) if base != NO_COMMIT else NO_COMMIT
    before, after = ({} if base == NO_COMMIT else _specs(checkout, base)), _specs(checkout, head)
    wanted = _wanted(asked.specs, after)
    with tempfile.TemporaryDirectory(prefix="metainfer-plan-") as scratch:
        judge = _Judge(checkout, base, head, Path(scratch), cache, asked)
        affected, unaffected, broken = [], [], []
        for path in wanted or sorted(after):
            try:
                spec = load_named_spec(judge.laid_out(path))
                reasons = judge.reasons(path, spec, before.get(path) != after[path], asked_for=bool(wanted))
            except MetainferError as error:
                broken.append(Broken(path, str(error).replace(f"{scratch}/", "")))
                continue
            if reasons:
                affected.append(Affected(spec.name, path, spec.target.platform, tuple(reasons)))
            else:
                unaffected.append(spec.name)
    deleted = () if wanted else tuple(PurePosixPath(path).stem for path in sorted(before.keys() - after.keys()))
    return Change(base, head, tuple(affected), tuple(unaffected), deleted, tuple(broken))


def _specs(checkout: Checkout, commit: str) -> dict[str, str]:
    """Spec files right below `specs/` → the id of their content."""
    return {
        path: entry.sha
        for path, entry in checkout.tree(commit, "specs").items()
        if path.count("/") == 1 and path.endswith(_SUFFIXES) and entry.mode.startswith("100")
    }


def _wanted(specs: Sequence[str], known: Mapping[str, str]) -> list[str]:
    found = []
    for given in specs:
        matches = [path for path in known if given in (path, PurePosixPath(path).stem)]
        if not matches:
            raise InputError(f"{given!r} is no spec of that commit; there are {', '.join(sorted(known)) or 'none'}")
        found += matches
    return list(dict.fromkeys(found))


class _Judge:
    """Compares what two commits say about one spec after another."""

    def __init__(self, checkout: Checkout, base: str, head: str, scratch: Path, cache: Path, asked: Asked) -> None:
        self._checkout = checkout
        self._base, self._head = base, head
        self._scratch = scratch
        self._cache = cache
        self._asked = asked
        self._bases: dict[str, KnowledgeBase] = {}
        self._knowledge = (
            checkout.changed(base, head, ["ckb"]) if base != NO_COMMIT else sorted(checkout.tree(head, "ckb"))
        )

    def laid_out(self, path: str) -> Path:
        """A spec of the head as a file, beside nothing else."""
        target = self._scratch / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self._checkout.read(self._head, path) or b"")
        return target

    def reasons(self, path: str, spec: Spec, changed: bool, *, asked_for: bool) -> list[Reason]:
        found = [Reason("asked", "asked for")] if asked_for or self._asked.every else []
        if changed:
            found.append(Reason("spec", f"{path} changed"))
        manifest = self._manifest(spec.name)
        if self._knowledge:
            found += [Reason("knowledge", words) for words in self._knowledge_reasons(spec, manifest)]
        if manifest and manifest.generator != generator():
            found.append(Reason("generator", _generators(manifest)))
        if self._asked.behind and not found:
            found += [Reason("behind", words) for words in self._behind(spec, manifest)]
        return found

    def _knowledge_reasons(self, spec: Spec, manifest: Manifest | None) -> list[str]:
        """Routed contracts whose files differ; every change counts where the model's facts are not known here."""
        model = self._facts(spec, manifest)
        if model is None:
            shown = ", ".join(self._knowledge[:3]) + (" and more" if len(self._knowledge) > 3 else "")
            return [f"knowledge changed ({shown}), and which of it this model needs is known once it is fetched"]
        facts = Facts.from_spec(spec, model)
        after = self._routed(self._head, facts)
        before = self._routed(self._base, facts) if self._base != NO_COMMIT else {}
        words = []
        for contract in sorted(before.keys() | after.keys()):
            if before.get(contract) == after.get(contract):
                continue
            files = [path.removeprefix(f"ckb/{contract}/") for path in self._knowledge if f"/{contract}/" in f"/{path}"]
            what = "no longer applies" if contract not in after else "now applies" if contract not in before else ""
            words.append(f"{contract}: {what or ', '.join(files) + ' changed'}")
        return words

    def _behind(self, spec: Spec, manifest: Manifest | None) -> list[str]:
        if manifest is None:
            return ["there is no engine for it yet"]
        if manifest.spec != spec.resolved():
            return ["the engine was made for an earlier spec"]
        if manifest.agent is not None:
            return []  # what a model wrote stays until somebody asks again
        model = self._facts(spec, manifest)
        routed = self._routed(self._head, Facts.from_spec(spec, model)) if model else {}
        made_of = {contract.id: contract.digest for contract in manifest.contracts}
        differing = sorted(c for c in routed.keys() | made_of.keys() if routed.get(c) != made_of.get(c))
        return [f"the engine was made of other knowledge: {', '.join(differing)}"] if differing else []

    def _facts(self, spec: Spec, manifest: Manifest | None) -> ModelFacts | None:
        """The model's facts, as the engine's manifest or the cache has them for the very same source."""
        source = spec.model.source
        if manifest and manifest.model.source == source.model_dump(mode="json"):
            return ModelFacts.model_validate(manifest.model.facts)
        try:
            known = known_model(source, cache=self._cache, base_dir=self._checkout.root / "specs")
        except MetainferError:
            return None
        return known.facts if known else None

    def _manifest(self, engine: str) -> Manifest | None:
        from pydantic import ValidationError

        data = self._checkout.read(self._head, f"engines/{engine}/manifest.json")
        try:
            return Manifest.model_validate_json(data) if data else None
        except ValidationError:
            return None  # of another version: it says nothing that can be compared

    def _routed(self, commit: str, facts: Facts) -> dict[str, str]:
        """Contracts that apply → their digests; none where that commit's knowledge does not hold together."""
        if commit not in self._bases:
            root = export_knowledge(self._checkout, commit, self._scratch)
            self._bases[commit] = KnowledgeBase.load(root)
        return {contract.id: contract.digest for contract in route(self._bases[commit], facts).contracts}


def _generators(manifest: Manifest) -> str:
    now, then = generator(), manifest.generator
    changes = [f"generator {then.version} → {now.version}"] if then.version != now.version else []
    changes += [
        f"{tool} {then.tools.get(tool, 'none')} → {version}"
        for tool, version in now.tools.items()
        if then.tools.get(tool) != version
    ]
    return ", ".join(changes) or "the generator's tools changed"


def require_only_specs(checkout: Checkout, base: str, head: str) -> None:
    """InputError if `head` brings anything but specs since it left `base`: an engine made for it would rest on that."""
    start = checkout.merge_base(checkout.commit(base), checkout.commit(head))
    others = [
        path for path in checkout.changed(start, head) if not (path.startswith("specs/") and path.count("/") == 1)
    ]
    if others:
        shown = ", ".join(ascii(path)[1:-1] for path in others[:3])
        raise InputError(
            f"it changes {len(others)} file(s) beside specs ({shown}); an engine can be made for a pull request that "
            "changes specs alone: merge the rest first"
        )
