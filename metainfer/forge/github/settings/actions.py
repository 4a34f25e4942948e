"""What workflows may do by themselves, whose pull requests start them, on which runners, and where secrets lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from metainfer.forge.github.connect import Connection
from metainfer.forge.github.settings.points import Point, ask, judged, unread

PUBLISH_ENVIRONMENT = "metainfer-publish"
MODEL_ENVIRONMENT = "metainfer-model"
APP_KEY = "METAINFER_APP_KEY"
API_KEY = "METAINFER_API_KEY"
APP_ID = "METAINFER_APP_ID"
_ADMINISTRATION = "the repository permission “Administration: read”"
_GENERAL = "Settings → Actions → General"
_HOSTED = ("ubuntu-", "windows-", "macos-")


def examine_workflows(connection: Connection, *, private: bool) -> Iterator[Point]:
    """Whether Actions runs at all, with which token, and for whom."""
    root = f"/repos/{connection.address.slug}"
    general = ask(connection, f"{root}/actions/permissions")
    if general.data is None:
        yield unread("Actions is on", _ADMINISTRATION)
    else:
        on = bool(general.data.get("enabled"))
        yield judged("Actions is on", on, step=f"{_GENERAL}: allow actions and reusable workflows")
        if on and general.data.get("sha_pinning_required") is False:
            step = f"{_GENERAL}: tick “Require actions to be pinned to a full-length commit SHA”"
            yield Point("advice", "actions have to be pinned by commit", "ours are", step)
    yield from _default_token(connection)
    if private:
        return
    policy = ask(connection, f"{root}/actions/permissions/fork-pr-contributor-approval")
    if policy.data is None:
        yield unread("workflows of strangers' pull requests wait for approval", _ADMINISTRATION)
    else:
        yield judged(
            "workflows of strangers' pull requests wait for approval",
            policy.data.get("approval_policy") == "all_external_contributors",
            detail=f"now: {policy.data.get('approval_policy')}",
            step=f"{_GENERAL} → Approval for running fork pull request workflows: “Require approval for all external "
            "contributors”",
        )


def _default_token(connection: Connection) -> Iterator[Point]:
    root = f"/repos/{connection.address.slug}"
    token = ask(connection, f"{root}/actions/permissions/workflow")
    what = "the workflows' default token may only read"
    if token.data is None:
        yield unread(what, _ADMINISTRATION)
        yield unread("who opens pull requests may do so", _ADMINISTRATION)
        return
    yield judged(
        what,
        token.data.get("default_workflow_permissions") == "read",
        step=f"{_GENERAL} → Workflow permissions: “Read repository contents and packages permissions”",
    )
    may_approve = bool(token.data.get("can_approve_pull_request_reviews"))
    app = ask(connection, f"{root}/actions/variables/{APP_ID}")
    tick = f"{_GENERAL} → Workflow permissions: “Allow GitHub Actions to create and approve pull requests”"
    if app.data is not None:
        yield judged(
            "workflows cannot approve pull requests, as an App opens them",
            not may_approve,
            step=f"{tick}, take the tick away",
        )
    elif app.status == 404:
        yield judged(
            "workflows may open pull requests, as no App does",
            may_approve,
            detail=f"there is no variable {APP_ID}",
            step=f"{tick}; or, better, install a GitHub App and set {APP_ID} and {APP_KEY}: other workflows run on its "
            "pull requests without anybody's click",
        )
    else:
        yield unread("who opens pull requests may do so", "the repository permission “Variables: read”")


def examine_runners(connection: Connection, wanted: Mapping[str, Sequence[str]]) -> Iterator[Point]:
    """Whether a runner with the labels of each platform is there. `wanted`: platform → labels of its job."""
    own = {name: labels for name, labels in wanted.items() if not _is_hosted(labels)}
    for name in sorted(wanted.keys() - own.keys()):
        yield Point("ok", f"{name}: jobs run on GitHub's own runner {', '.join(wanted[name])}")
    if not own:
        return
    pools = [f"/repos/{connection.address.slug}/actions/runners"]
    pools.append(f"/orgs/{quote(connection.address.owner, safe='')}/actions/runners")
    here: list[Mapping[str, Any]] = []
    unseen = False
    for pool in pools:
        answer = ask(connection, f"{pool}?per_page=100")
        unseen |= answer.data is None
        here += (answer.data or {}).get("runners") or []
    for name, labels in sorted(own.items()):
        need = {label.casefold() for label in labels}
        fitting = [runner for runner in here if need <= {str(x["name"]).casefold() for x in runner.get("labels") or ()}]
        what = f"{name}: a runner with the labels {', '.join(labels)}"
        if any(runner.get("status") == "online" for runner in fitting):
            yield Point("ok", what)
        elif fitting:
            yield Point("missing", what, "it is there, and offline", "start the runner")
        elif unseen:
            needs = f"{_ADMINISTRATION}, and for an organisation's runners “Self-hosted runners: read”"
            yield unread(what, needs)
        else:
            step = "Settings → Actions → Runners: add one with these labels, ephemeral, for this repository alone"
            yield Point("missing", what, "there is none", step)


def _is_hosted(labels: Sequence[str]) -> bool:
    return len(labels) == 1 and labels[0].startswith(_HOSTED)


def examine_secrets(connection: Connection) -> Iterator[Point]:
    """Whether what may write, and what costs money, lies where only the job that needs it gets at it."""
    root = f"/repos/{connection.address.slug}"
    everywhere = ask(connection, f"{root}/actions/secrets?per_page=100").data
    yield from _model_key(connection, everywhere)
    what = f"the environment {PUBLISH_ENVIRONMENT} is for protected branches only"
    where = f"Settings → Environments → {PUBLISH_ENVIRONMENT}"
    environment = ask(connection, f"{root}/environments/{PUBLISH_ENVIRONMENT}")
    if environment.data is None:
        listed = ask(connection, f"{root}/environments?per_page=100")
        if listed.data is None:
            yield unread(what, "the repository permission “Actions: read”")
        else:
            yield Point("missing", what, "there is no such environment", f"{where}: make it; deployment branches: main")
            return
    else:
        yield _limited(what, environment.data, where)
    kept = ask(connection, f"{root}/environments/{PUBLISH_ENVIRONMENT}/secrets?per_page=100")
    yield from _app_key(kept.data, everywhere, where)


def _model_key(connection: Connection, everywhere: object) -> Iterator[Point]:
    """The model's key, where there may be one: nothing is missing of a repository whose specs ask no model."""
    what = f"{API_KEY} is no secret of the repository"
    where = f"Settings → Environments → {MODEL_ENVIRONMENT}"
    names = _names(everywhere)
    if names is None:
        yield unread(what, "the repository permission “Secrets: read”")
    else:
        yield judged(
            what,
            API_KEY not in names,
            detail="every workflow of the repository can spend with it",
            step=f"{where}: add it there; then remove it from Settings → Secrets and variables → Actions",
        )
    environment = ask(connection, f"/repos/{connection.address.slug}/environments/{MODEL_ENVIRONMENT}").data
    if environment is not None:
        yield _limited(f"the environment {MODEL_ENVIRONMENT} is for protected branches only", environment, where)


def _limited(what: str, environment: Mapping[str, Any], where: str) -> Point:
    return judged(
        what,
        environment.get("deployment_branch_policy") is not None,
        detail="any branch may use it, a person's as well",
        step=f"{where} → Deployment branches and tags: “Protected branches only”",
    )


def _app_key(kept: object, everywhere: object, where: str) -> Iterator[Point]:
    what = f"{APP_KEY} lies in the environment alone"
    needs = "the repository permissions “Environments: read” and “Secrets: read”"
    in_environment, in_repository = _names(kept), _names(everywhere)
    if in_repository is not None and APP_KEY in in_repository:
        step = f"{where}: add it there; then remove it from Settings → Secrets and variables → Actions"
        yield Point("missing", what, "every workflow of the repository can read it", step)
    elif in_environment is None or in_repository is None:
        yield unread(what, needs)
    elif APP_KEY not in in_environment:
        yield Point("advice", what, "there is none: the run's own token publishes", f"{where}: add your App's key")
    else:
        yield Point("ok", what)


def _names(data: object) -> set[str] | None:
    secrets = data.get("secrets") if isinstance(data, Mapping) else None
    return {str(secret.get("name")) for secret in secrets} if isinstance(secrets, list) else None
