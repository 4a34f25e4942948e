"""The event that started a workflow. GitHub wrote the file; what is in it, anybody may have."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metainfer.errors import InputError
from metainfer.files import read_regular

PREFIX = "metainfer-"
"""Of workflow files in repositories that call ours, where other workflows may have the short names."""
_MAX_BYTES = 25 << 20
"""GitHub cuts payloads at 25 MB."""
_LOGIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,99})(?:\[bot\])?")
_QUEUE_REF = re.compile(r"refs/heads/gh-readonly-queue/.+/pr-([1-9][0-9]{0,8})-[0-9a-f]{40}")
_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Remark:
    """Somebody's comment on a pull request."""

    id: int
    number: int
    login: str
    body: str


@dataclass(frozen=True, slots=True)
class Group:
    """A merge queue's commit, and the pull request that it was made for."""

    commit: str
    number: int


@dataclass(frozen=True, slots=True)
class Event:
    """What kind of event it was (`GITHUB_EVENT_NAME`), and its payload."""

    name: str
    payload: Mapping[str, Any]

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Event:
        """Of this workflow run. InputError outside of one."""
        environment = os.environ if environment is None else environment
        path, name = environment.get("GITHUB_EVENT_PATH"), environment.get("GITHUB_EVENT_NAME", "")
        if not path:
            raise InputError("no event: $GITHUB_EVENT_PATH is not set; name a pull request, or run this in a workflow")
        try:
            data = json.loads(read_regular(Path(path), _MAX_BYTES))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: is no event of GitHub's") from error
        if not isinstance(data, Mapping):
            raise InputError(f"{path}: is no event of GitHub's")
        return cls(name, data)

    def pull_number(self) -> int | None:
        """The pull request that it is about; None if it is about none."""
        for holder in (self.payload.get("pull_request"), self._issue_of_pull()):
            number = holder.get("number") if isinstance(holder, Mapping) else None
            if isinstance(number, int) and _is_number(number):
                return number
        return None

    def group(self) -> Group | None:
        """The merge group that it is about, with the number that GitHub put into its branch."""
        group = self.payload.get("merge_group")
        if not isinstance(group, Mapping):
            return None
        found = _QUEUE_REF.fullmatch(str(group.get("head_ref", "")))
        commit = str(group.get("head_sha", ""))
        if not found or not _SHA.fullmatch(commit):
            raise InputError("the merge group's branch does not name its pull request")
        return Group(commit, int(found.group(1)))

    def remark(self) -> Remark | None:
        """The comment that was written on a pull request; None for any other event, edits and deletions among them."""
        issue = self._issue_of_pull()
        if self.name != "issue_comment" or self.payload.get("action") != "created" or issue is None:
            return None
        return read_remark(self.payload.get("comment"), issue.get("number"))

    def _issue_of_pull(self) -> Mapping[str, Any] | None:
        issue = self.payload.get("issue")
        is_pull = isinstance(issue, Mapping) and isinstance(issue.get("pull_request"), Mapping)
        return issue if is_pull else None


def read_remark(comment: object, number: object) -> Remark | None:
    """A comment as GitHub describes one; None for what is not whole."""
    user = comment.get("user") if isinstance(comment, Mapping) else None
    if not isinstance(comment, Mapping) or not isinstance(user, Mapping):
        return None
    login, body, comment_id = user.get("login"), comment.get("body"), comment.get("id")
    if not isinstance(login, str) or not _LOGIN.fullmatch(login) or not isinstance(body, str):
        return None
    if not isinstance(comment_id, int) or not isinstance(number, int):
        return None
    return Remark(comment_id, number, login, body) if _is_number(comment_id) and _is_number(number) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 53


def run_url(environment: Mapping[str, str] | None = None) -> str:
    """Where the log of this workflow run is; "" outside of one."""
    environment = os.environ if environment is None else environment
    server, slug, run = (
        environment.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    )
    return f"{server}/{slug}/actions/runs/{run}" if server and slug and run.isdigit() else ""


def sibling(workflow: str, environment: Mapping[str, str] | None = None) -> str:
    """The file name of another of our workflows here: where `metainfer init` wrote them, each has a prefix."""
    environment = os.environ if environment is None else environment
    running = environment.get("GITHUB_WORKFLOW_REF", "").split("@")[0].rpartition("/")[2]
    return f"{PREFIX}{workflow}" if running.startswith(PREFIX) else workflow
