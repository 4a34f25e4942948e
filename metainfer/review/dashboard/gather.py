"""Reads the facts: engines from Git, pull requests, statuses and runs from GitHub."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from metainfer.errors import InputError
from metainfer.forge.bench_table import spread
from metainfer.forge.body import is_green
from metainfer.forge.evidence import EVIDENCE, MANIFEST
from metainfer.forge.github.errors import GitHubRefusedError
from metainfer.forge.github.forge import GitHubForge
from metainfer.forge.markdown import inline
from metainfer.forge.protocol import PullRequest
from metainfer.release.versions import Version
from metainfer.review.check import CONTEXT, default_branch
from metainfer.review.dashboard.facts import EngineFacts, Facts, ReviewFacts, RunFacts
from metainfer.review.event import sibling
from metainfer.review.report import LABEL_CHANGE, LABEL_WEAKENED
from metainfer.review.statuses import Statuses

WORKFLOWS = ("generate.yml", "release.yml", "nightly.yml")
_SPEED = "decode_tokens_per_s"


def gather(forge: GitHubForge, *, outcome: str = "", run_url: str = "") -> Facts:
    """Everything, as it is now. Only reads."""
    base = default_branch(forge.connection)
    tip = forge.base_sha(base)
    return Facts(
        engines=_engines(forge, base, tip),
        reviews=_reviews(forge, base),
        runs=[_run(forge, workflow) for workflow in WORKFLOWS],
        outcome=outcome,
        run_url=run_url,
    )


def _engines(forge: GitHubForge, base: str, tip: str) -> Sequence[EngineFacts]:
    specs = _specs(forge, tip)
    files = forge.read_tree(tip, "engines")
    pulls = {pull.engine: pull for pull in forge.list("open") if pull.engine and pull.base == base}
    tags = forge.tags("")
    names = {path.split("/")[1] for path in files if path.count("/") == 2 and path.endswith(f"/{MANIFEST}")}
    return [
        _engine(forge, name, files, specs.get(name), pulls.get(name), _release(tags, name))
        for name in sorted(names | specs.keys() | pulls.keys())
    ]


def _specs(forge: GitHubForge, tip: str) -> dict[str, Mapping[str, Any]]:
    import yaml

    found: dict[str, Mapping[str, Any]] = {}
    for path, data in forge.read_tree(tip, "specs").items():
        if path.count("/") == 1 and path.endswith((".yaml", ".yml")):
            try:
                spec = yaml.safe_load(data)
            except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: no UTF-8, or a date like 2026-13-45
                spec = None
            found[PurePosixPath(path).stem] = spec if isinstance(spec, Mapping) else {}
    return found


def _engine(
    forge: GitHubForge,
    name: str,
    files: Mapping[str, bytes],
    spec: Mapping[str, Any] | None,
    pull: PullRequest | None,
    release: str,
) -> EngineFacts:
    prefix = f"engines/{name}/"
    manifest, evidence = _record(files.get(prefix + MANIFEST)), _record(files.get(prefix + EVIDENCE))
    agent = _dict(manifest.get("agent"))
    proposed, waiting = _dict(None), _dict(None)
    if pull is not None and forge.mirror.has(pull.head):
        proposed = _dict(_record(forge.read_file(pull.head, prefix + MANIFEST)).get("agent"))
        waiting = _record(forge.read_file(pull.head, prefix + EVIDENCE))
    return EngineFacts(
        name=name,
        spec=spec is not None,
        release=release,
        verdict=_verdict(evidence) if manifest else "",
        judged=str(evidence.get("created") or ""),
        lines=_whole(manifest.get("code_lines")),
        speed=_speed(evidence),
        model=str(_dict(agent.get("settings")).get("model") or ""),
        spent_usd=_money(agent.get("cost_usd")),
        budget_usd=_money(_dict((spec or {}).get("generation")).get("budget_usd")),
        pull=pull.number if pull else 0,
        pull_verdict=_verdict(waiting) if pull else "",
        pull_spent_usd=_money(proposed.get("cost_usd")),
    )


def _release(tags: Iterable[str], name: str) -> str:
    """The newest version that was tagged; "" if there is none."""
    versions = []
    for tag in tags:
        if tag.startswith(f"{name}/v"):
            with contextlib.suppress(InputError):  # a tag of somebody else's making
                versions.append(Version.parse(tag.removeprefix(f"{name}/")))
    return f"v{max(versions)}" if versions else ""


def _verdict(evidence: Mapping[str, Any]) -> str:
    if not evidence:
        return "no evidence"
    return "green" if is_green(evidence) else "red"


def _speed(evidence: Mapping[str, Any]) -> str:
    """How much faster than its peers it decodes, in Markdown."""
    told = []
    for ratio in _list(_dict(evidence.get("bench")).get("ratios")):
        if _dict(ratio).get("figure") == _SPEED:
            told.append(f"{spread(ratio.get('ratio'))} × {inline(ratio.get('peer'), 40)}")
    return ", ".join(told[:2])


def _reviews(forge: GitHubForge, base: str) -> Sequence[ReviewFacts]:
    repo = forge.connection.repo
    pulls = forge.connection.read("listing pull requests", lambda: list(repo.get_pulls("open", base=base)))
    found = []
    for pull in sorted(pulls, key=lambda pull: pull.number):
        names = {label.name for label in pull.labels}
        if LABEL_CHANGE not in names:
            continue
        status = Statuses(forge.connection).latest(pull.head.sha, CONTEXT)
        state, words = (status.state, status.description) if status else ("", "not judged yet")
        found.append(ReviewFacts(pull.number, pull.title, state, words, LABEL_WEAKENED in names))
    return found


def _run(forge: GitHubForge, workflow: str) -> RunFacts:
    name = sibling(workflow)
    path = f"/repos/{forge.connection.address.slug}/actions/workflows/{quote(name, safe='')}/runs"
    try:
        last = _newest_run(forge, f"{path}?per_page=1")
        good = _newest_run(forge, f"{path}?per_page=1&status=success")
    except GitHubRefusedError:
        return RunFacts(name, unread=True)
    return RunFacts(
        workflow=name,
        last=str(last.get("created_at") or ""),
        outcome=str(last.get("conclusion") or last.get("status") or ""),
        url=str(last.get("html_url") or ""),
        succeeded=str(good.get("updated_at") or ""),
    )


def _newest_run(forge: GitHubForge, path: str) -> Mapping[str, Any]:
    found: Any = forge.connection.find("reading workflow runs", lambda: forge.connection.request("GET", path))
    runs = _list(_dict(found).get("workflow_runs"))
    return _dict(runs[0]) if runs else {}


def _record(data: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _money(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9 else 0.0
