"""Hears a comment and answers it: who may command is asked of GitHub, what is done is left to the workflow."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metainfer.errors import InputError, MetainferError
from metainfer.forge.markdown import block, code, fence, inline, table
from metainfer.forge.paths import check_engine_name
from metainfer.review.check import default_branch
from metainfer.review.event import Remark, read_remark, sibling
from metainfer.review.orders import USAGE, Order, is_meant, parse_order

if TYPE_CHECKING:
    from metainfer.forge.github.forge import GitHubForge
    from metainfer.forge.protocol import PullRequest

WORKFLOW = "generate.yml"
_MAX_UNITS = 100
_SPECS = ("specs/{}.yaml", "specs/{}.yml")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be said and done. `action` "": nothing."""

    said: str = ""
    key: str = ""
    """Of the comment; one key is never said twice."""
    action: str = ""
    engine: str = ""
    spec: str = ""
    base: str = ""


def answer(forge: GitHubForge, remark: Remark, state: Path) -> Answer:
    """Read a comment's command and carry out what needs no more than reading; says nothing yet.

    `state` is where knowledge is laid out. Nothing of a pull request is run.
    """
    from metainfer.forge.github.owners import Owners

    order = parse_order(remark.body)
    if order is None and not is_meant(remark.body):
        return Answer()
    if not Owners(forge.connection).may_write(remark.login):
        # A stranger's slip of the pen gets no answer; a command gets one, once.
        return _refused(remark) if order is not None else Answer()
    key = f"answer:{remark.id}"
    if order is None:
        return Answer(f"{USAGE} I did nothing.", key)
    pull = forge.get(remark.number)
    problem = _problem(forge, pull, order)
    if problem:
        return Answer(f"{problem} I did nothing.", key)
    if order.action == "explain":
        return Answer(_explained(forge, pull, order, state), key)
    spec = next((path for path in _spec_paths(pull.engine) if forge.read_file(_tip(forge, pull), path)), None)
    if spec is None:
        return Answer(f"There is no spec of {code(pull.engine)} on {code(pull.base)} any more. I did nothing.", key)
    return Answer(_accepted(order, remark, pull), key, order.action, pull.engine, spec, pull.base)


def find_remark(forge: GitHubForge, number: int, comment_id: int) -> Remark:
    """A comment by its id, as it stands now. InputError if there is none on that pull request."""
    path = f"/repos/{forge.connection.address.slug}/issues/comments/{comment_id}"
    found: Any = forge.connection.find(f"reading a comment on #{number}", lambda: forge.connection.request("GET", path))
    remark = read_remark(found, number)
    if remark is None or not str(found.get("issue_url", "")).endswith(f"/issues/{number}"):
        raise InputError(f"there is no comment {comment_id} on #{number}")
    return remark


def carry_out(forge: GitHubForge, number: int, given: Answer) -> bool:
    """Say it under the pull request, and start what was asked for; False if an earlier try did all that."""
    if not given.said or forge.conversation.has_said(number, given.key):
        return False
    if given.action:
        _start(forge, given)
    forge.conversation.say(number, given.key, given.said)
    return True


def _start(forge: GitHubForge, given: Answer) -> None:
    """Dispatch the default branch's own workflow: it looks at everything again, and trusts no comment."""
    from metainfer.forge.github.workflows import start_workflow

    inputs = {"specs": given.engine, "regenerate": "true" if given.action == "regenerate" else "false"}
    start_workflow(forge.connection, sibling(WORKFLOW), given.base, inputs, given.engine)


def _problem(forge: GitHubForge, pull: PullRequest, order: Order) -> str:
    """Why a command makes no sense on this pull request; "" if it does."""
    if not pull.engine or not _is_the_bots(forge, pull):
        return "This is not one of my engine pull requests; commands work on those."
    if order.action != "explain" and pull.state == "merged":
        return "This pull request is merged; change the spec or the knowledge to get another engine."
    if order.action != "explain" and pull.base != default_branch(forge.connection):
        return f"This engine is stacked on {code(pull.base)}: push to that branch, and it is made again."
    return ""


def _is_the_bots(forge: GitHubForge, pull: PullRequest) -> bool:
    """By the branch of this very repository, and not by the marker alone, which anybody can write."""
    try:
        check_engine_name(pull.engine)
    except MetainferError:
        return False
    return any(found.number == pull.number for found in forge.pulls.of_engine(pull.engine, pull.base))


def _refused(remark: Remark) -> Answer:
    who = re.sub(r"[^a-z0-9-]", "-", remark.login.casefold())
    words = f"{code('@' + remark.login)}, only people who may write to this repository can tell me what to do."
    return Answer(words, f"refused:{who}")


def _accepted(order: Order, remark: Remark, pull: PullRequest) -> str:
    who, engine = code("@" + remark.login), code(pull.engine)
    if order.action == "regenerate":
        return (
            f"Making {engine} again, as {who} asked: what is on its branch now is replaced, commits of people as well. "
            "The same inputs give the same engine."
        )
    return f"Trying {engine} again, as {who} asked. Commits of people on its branch are left alone."


def _explained(forge: GitHubForge, pull: PullRequest, order: Order, state: Path) -> str:
    try:
        if not order.file:
            return _units(forge, pull)
        lines = block(_line(forge, pull, order, state).splitlines())
    except MetainferError as error:
        return f"I cannot explain that: {inline(error, 500)}"
    except (RecursionError, MemoryError):
        return "I cannot explain that: the file cannot be read as Python."
    marks = fence(lines)
    return "\n".join([f"{code(f'{order.file}:{order.line}')} at {code(pull.head[:12])}:", "", marks, *lines, marks])


def _line(forge: GitHubForge, pull: PullRequest, order: Order, state: Path) -> str:
    from metainfer.pipeline.checkout import checkout_pull
    from metainfer.pipeline.explain import explain_line
    from metainfer.pipeline.knowledge import export_knowledge

    prefix = f"engines/{pull.engine}/"
    knowledge = export_knowledge(forge, _tip(forge, pull), state)
    with tempfile.TemporaryDirectory(prefix="metainfer-explain-") as scratch:
        folder = Path(scratch) / pull.engine
        checkout_pull(forge, pull, folder)
        file = (folder / order.file.removeprefix(prefix)).resolve()
        if not file.is_relative_to(folder.resolve()) or not file.is_file():
            return f"{order.file}: no such file in {prefix}"
        return explain_line(file, order.line, knowledge).replace(f"{folder}/", prefix)


def _units(forge: GitHubForge, pull: PullRequest) -> str:
    rows = [_row(unit) for unit in _manifest_units(forge, pull)[:_MAX_UNITS]]
    if not rows:
        return "I cannot explain this engine: its manifest lists no units."
    head = f"The units of {code(pull.engine)} at {code(pull.head[:12])}; `/metainfer explain FILE:LINE` says more.\n"
    return "\n".join([head, *table(["unit", "contract", "made by", "from"], rows)])


def _row(unit: dict[str, Any]) -> list[str]:
    contract = f"{inline(unit.get('contract', '?'))} v{inline(unit.get('contract_version', '?'))}"
    made_by = inline(unit.get("backend", "?"))
    return [code(unit.get("name", "?")), contract, made_by, code(unit.get("origin", ""))]


def _manifest_units(forge: GitHubForge, pull: PullRequest) -> Sequence[dict[str, Any]]:
    from metainfer.forge.evidence import MANIFEST, examine

    prefix = f"engines/{pull.engine}/"
    data = forge.read_file(pull.head, prefix + MANIFEST)
    units = examine(pull.engine, {MANIFEST: data or b"{}"}).record(MANIFEST).get("units")
    return [unit for unit in units if isinstance(unit, dict)] if isinstance(units, list) else []


def _tip(forge: GitHubForge, pull: PullRequest) -> str:
    return forge.base_sha(pull.base)


def _spec_paths(engine: str) -> list[str]:
    return [pattern.format(engine) for pattern in _SPECS]
