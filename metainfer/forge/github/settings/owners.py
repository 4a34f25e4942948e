"""CODEOWNERS as GitHub itself judges it, and whether our check can tell who its owners are."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from urllib.parse import quote

from metainfer.forge.codeowners import LOCATIONS, parse_codeowners
from metainfer.forge.github.connect import Connection
from metainfer.forge.github.credentials import MEMBERS_TOKEN
from metainfer.forge.github.settings.points import Point, ask, judged, unread

_FOLDERS = ("ckb", "specs", "engines", ".github")
_MAX_SHOWN = 5


def examine_owners(connection: Connection, branch: str) -> Iterator[Point]:
    """Errors, folders that nobody owns, and owners that the check cannot recognise."""
    root = f"/repos/{connection.address.slug}"
    errors = ask(connection, f"{root}/codeowners/errors?ref={quote(branch, safe='')}")
    path, text = _read(connection, branch)
    if path is None:
        step = "add .github/CODEOWNERS; `metainfer init` writes one"
        yield Point("missing", "CODEOWNERS is there", f"there is none on {branch}", step)
        return
    if errors.data is None:
        yield unread(f"{path} holds no errors", "the repository permission “Contents: read”")
    else:
        found = [f"line {error.get('line')}: {_first_line(error)}" for error in errors.data.get("errors") or ()]
        yield judged(f"{path} holds no errors", not found, detail="; ".join(found[:_MAX_SHOWN]), step=f"edit {path}")
    rules = parse_codeowners(text)
    nobody = [folder for folder in _FOLDERS if not rules.owners(f"{folder}/any/file")]
    yield judged(
        "ckb/, specs/, engines/ and .github/ have owners",
        not nobody,
        detail="nobody owns " + ", ".join(f"{folder}/" for folder in nobody),
        step=f"edit {path}, or run `metainfer init --owner @org/team`",
    )
    yield from _recognisable(connection, rules.owners("ckb/any/file"))


def _recognisable(connection: Connection, owners: tuple[str, ...]) -> Iterator[Point]:
    """Whether the check can tell that an approval is one of theirs."""
    for owner in owners:
        if not owner.startswith("@"):
            detail = "an address names no account, so its approval cannot be recognised"
            yield Point(
                "missing", f"{owner}, owner of ckb/, is an account or team", detail, "write @login in its place"
            )
    teams = [owner for owner in owners if "/" in owner and owner.startswith("@")]
    if not teams:
        return
    what = f"the check can tell who is in {', '.join(teams)}"
    root = f"/repos/{connection.address.slug}/actions"
    lists = [ask(connection, f"{root}/{kind}?per_page=100").data for kind in ("secrets", "organization-secrets")]
    names = {secret.get("name") for data in lists if data is not None for secret in data.get("secrets") or ()}
    if MEMBERS_TOKEN in names:
        yield Point("ok", what)
    elif None in lists:
        yield unread(what, f"“Secrets: read” (is there a secret {MEMBERS_TOKEN}?)")
    else:
        step = (
            f"add a secret {MEMBERS_TOKEN}: a token with the organisation permission “Members: read” and no other; "
            "or name people, not teams, as owners of ckb/"
        )
        yield Point("missing", what, "the token of a workflow run may not know that", step)


def _read(connection: Connection, branch: str) -> tuple[str | None, str]:
    for path in LOCATIONS:
        found = ask(connection, f"/repos/{connection.address.slug}/contents/{path}?ref={quote(branch, safe='')}").data
        if isinstance(found, dict) and isinstance(found.get("content"), str):
            return path, base64.b64decode(found["content"]).decode("utf-8", "replace")
    return None, ""


def _first_line(error: dict[str, object]) -> str:
    return " ".join(str(error.get("message") or error.get("kind") or "").split("\n")[0].split())[:200]
