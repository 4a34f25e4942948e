"""Publications on GitHub, each with what must be there afterwards, whatever went wrong.

Checks look past the API, at what the stub and Git hold. Pull request 1 is always the bot's first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metainfer.forge.authorship import bot_made
from metainfer.forge.github.forge import GitHubForge
from metainfer.forge.markers import read_marker
from metainfer.forge.plumbing import Repository
from metainfer.forge.protocol import PublishRequest, Status
from tests.forge.engines import ENGINE, FOLDER, engine_files
from tests.github.faulty import Ground, Operation
from tests.review.repository import CHECK, knowledge

BRANCH = f"metainfer/{ENGINE}"
AA, BB = "sha256:aa", "sha256:bb"
KNOWLEDGE = {"ckb/family/a/check.py": CHECK.replace("1e-5", "1e-6").encode()}
SPEC = {f"specs/{ENGINE}.yaml": b"name: tiny\n"}
BY_HAND = {f"{FOLDER}README.md": b"# by hand\n"}
WORKFLOW = {".github/workflows/generate.yml": b"on:\n  workflow_dispatch:\n"}
FILES = {**knowledge(), **SPEC, **WORKFLOW}


def request(ground: Ground, inputs: str, *, regenerate: bool = False, more: Mapping[str, bytes] = {}) -> PublishRequest:
    """What the publishing job would ask for; `more` are proposals of knowledge."""
    return PublishRequest(
        engine=ENGINE,
        input_hash=inputs,
        base_sha=ground.tip("main"),
        engine_files=placed(inputs),
        title=f"Generate {ENGINE}",
        body=f"Verdict: passed, for {inputs}.\n",
        proposal_files=more,
        regenerate=regenerate,
    )


def placed(inputs: str) -> dict[str, bytes]:
    """The engine's files for some inputs, by path from the root."""
    return {f"{FOLDER}{path}": data for path, data in engine_files(inputs, f"print({inputs!r})\n").items()}


def publish(ground: Ground, inputs: str, **more: Any) -> None:
    ground.forge().publish(request(ground, inputs, **more))


def holds(ground: Ground, revision: str, files: Mapping[str, bytes]) -> None:
    bare = ground.repo.bare
    there = bare.git("ls-tree", "-r", "--name-only", revision, "--", FOLDER).splitlines()
    assert sorted(there) == sorted(path for path in files if path.startswith(FOLDER))
    assert {path: bare.file(revision, path) for path in files} == dict(files)


def proposes(ground: Ground, inputs: str, number: int = 1, more: Mapping[str, bytes] = {}) -> None:
    """There is one open pull request, `number`, and its head and its words are of `inputs`; no other branch is left."""
    (pull,) = ground.pulls("open")
    assert pull.pull is not None
    assert pull.number == number
    assert pull.pull.head == ground.tip(BRANCH)
    holds(ground, BRANCH, {**placed(inputs), **more})
    assert bot_made(Repository(ground.repo.bare.path), "main", ground.tip(BRANCH))
    assert read_marker(pull.body or "") == {"engine": ENGINE, "input_hash": inputs, "head": pull.pull.head}
    assert f"for {inputs}" in (pull.body or "")
    only_these(ground)


def only_these(ground: Ground, *more: str) -> None:
    """No branch and no tag but the base, the bot's, and `more`; no pull request's head without its pull request."""
    numbers = [issue.number for issue in ground.repo.issues.values() if issue.pull]
    kept = {"heads/main", f"heads/{BRANCH}", *(f"pull/{number}/head" for number in numbers), *more}
    assert set(ground.refs()) <= kept


def said(ground: Ground, number: int, *parts: str) -> None:
    """The comments of an issue, each of which holds one of `parts`, in order."""
    comments = ground.comments(number)
    assert len(comments) == len(parts), comments
    assert all(part in text for part, text in zip(parts, comments, strict=True)), comments


# Publishing


def _nothing(ground: Ground) -> None:
    """Only main."""


def _create(ground: Ground, forge: GitHubForge) -> Status:
    return forge.publish(request(ground, AA, more=KNOWLEDGE)).status


def _is_created(ground: Ground) -> None:
    proposes(ground, AA, more=KNOWLEDGE)
    said(ground, 1)
    assert len(ground.pulls()) == 1


def _open(ground: Ground) -> None:
    publish(ground, AA)


def _update(ground: Ground, forge: GitHubForge) -> Status:
    return forge.publish(request(ground, BB)).status


def _is_updated(ground: Ground) -> None:
    proposes(ground, BB)
    said(ground, 1)
    assert len(ground.pulls()) == 1


def _make_needless(ground: Ground) -> None:
    """main holds what AA makes, and a pull request would bring BB."""
    ground.repo.bare.commit("main", dict(placed(AA)))
    publish(ground, BB)


def _go_back(ground: Ground, forge: GitHubForge) -> Status:
    return forge.publish(request(ground, AA)).status


def _is_retired(ground: Ground) -> None:
    (pull,) = ground.pulls()
    assert pull.state == "closed"
    marker = read_marker(pull.body or "")
    assert (marker["retired"], marker["input_hash"]) == ("yes", BB)
    said(ground, 1, "Closed: main already holds what this would bring.")
    only_these(ground)


def _commit_by_hand(ground: Ground) -> None:
    publish(ground, AA)
    ground.repo.bare.commit(BRANCH, BY_HAND)


def _is_blocked(ground: Ground) -> None:
    (pull,) = ground.pulls("open")
    assert pull.pull is not None
    assert ground.repo.bare.file(BRANCH, f"{FOLDER}README.md") == b"# by hand\n"
    assert pull.pull.head == ground.tip(BRANCH)
    assert read_marker(pull.body or "")["input_hash"] == AA
    said(ground, 1, "/metainfer regenerate")
    only_these(ground)


def _be_blocked(ground: Ground) -> None:
    _commit_by_hand(ground)
    publish(ground, BB)


def _regenerate(ground: Ground, forge: GitHubForge) -> Status:
    return forge.publish(request(ground, BB, regenerate=True)).status


def _is_regenerated(ground: Ground) -> None:
    proposes(ground, BB)
    said(ground, 1, "/metainfer regenerate", "Regenerating on request. The branch was at ")


def _refuse(ground: Ground) -> None:
    publish(ground, AA)
    ground.as_("alice", "PATCH", "/pulls/1", {"state": "closed"})


def _is_followed(ground: Ground) -> None:
    proposes(ground, BB, 2)
    assert "Follows #1, which @&#8203;alice closed." in (ground.repo.issues[2].body or "")
    assert ground.repo.issues[1].state == "closed"
    said(ground, 1)
    said(ground, 2)


CREATED = Operation(
    "created",
    _nothing,
    _create,
    _is_created,
    frozenset({Status.CREATED, Status.UPDATED, Status.UNCHANGED}),
    ["GET .*/info/refs", "POST .*/git-upload-pack", "POST .*/git-receive-pack", "GET .*/pulls$", "POST .*/pulls$"],
)
UPDATED = Operation(
    "updated",
    _open,
    _update,
    _is_updated,
    frozenset({Status.UPDATED, Status.UNCHANGED}),
    ["POST .*/git-receive-pack", "PATCH .*/pulls/1$"],
)
RETIRED = Operation(
    "retired",
    _make_needless,
    _go_back,
    _is_retired,
    frozenset({Status.UNCHANGED}),
    ["POST .*/issues/1/comments", "PATCH .*/pulls/1$"],
)
BLOCKED = Operation(
    "blocked", _commit_by_hand, _update, _is_blocked, frozenset({Status.BLOCKED}), ["POST .*/issues/1/comments"]
)
REGENERATED = Operation(
    "regenerated",
    _be_blocked,
    _regenerate,
    _is_regenerated,
    frozenset({Status.UPDATED, Status.UNCHANGED}),
    ["POST .*/git-receive-pack", "PATCH .*/pulls/1$", "POST .*/issues/1/comments"],
)
FOLLOWED = Operation(
    "followed",
    _refuse,
    _update,
    _is_followed,
    frozenset({Status.CREATED, Status.UPDATED, Status.UNCHANGED}),
    ["GET .*/issues/1/events$", "POST .*/git-receive-pack", "POST .*/pulls$"],
)
PUBLISHING = (CREATED, UPDATED, RETIRED, BLOCKED, REGENERATED, FOLLOWED)
