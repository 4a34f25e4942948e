"""Comments and labels of an issue or pull request. A comment of ours carries a key; it is edited, never repeated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from metainfer.forge.github.connect import Connection

MAX_COMMENT_CHARACTERS = 65_000
"""GitHub takes 65,536."""
_KEY = re.compile(r"<!-- metainfer-comment:([a-z0-9:._/-]{1,200}) -->\s*\Z")
_OPEN = "<!-- metainfer-comment:"


@dataclass(frozen=True, slots=True)
class Remark:
    """One comment as GitHub holds it. `key` is set for ours alone, whatever another account's comment says."""

    id: int
    login: str
    at: str
    text: str
    key: str


class Conversation:
    """What is said about issues and pull requests, which GitHub numbers in one line."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def remarks(self, number: int) -> list[Remark]:
        """All comments, oldest first. The lines that are not part of a review."""
        path = f"{self._issue(number)}/comments"
        found = self.connection.read(f"reading the comments of #{number}", lambda: list(self._pages(path)))
        return [_remark(data, self.connection.own_login) for data in found]

    def say(self, number: int, key: str, text: str) -> Remark:
        """Make our comment with this key say `text`: written once, edited when the text changed, else left alone."""
        body = _with_key(text, key)
        there = self._ours(number, key)
        if there is None:
            path = f"{self._issue(number)}/comments"
            return self.connection.write(
                f"commenting on #{number}",
                lambda: self._sent("POST", path, body),
                lambda: self._ours(number, key),
            )
        if same_text(there.text, body):
            return there
        path = f"{self._root}/issues/comments/{there.id}"
        return self.connection.write(
            f"editing a comment on #{number}",
            lambda: self._sent("PATCH", path, body),
            lambda: self._ours(number, key, body),
        )

    def has_said(self, number: int, key: str) -> bool:
        """Whether a comment of ours with this key is there."""
        return self._ours(number, key) is not None

    def labels(self, number: int) -> list[str]:
        """The labels that are on it."""
        found = self.connection.read(
            f"reading the labels of #{number}", lambda: list(self._pages(f"{self._issue(number)}/labels"))
        )
        return [str(label["name"]) for label in found]

    def put_label(self, number: int, name: str) -> None:
        """Put a label on. One that the repository does not know yet is made by GitHub."""
        if name in self.labels(number):
            return
        path = f"{self._issue(number)}/labels"
        self.connection.write(
            f"putting the label {name} on #{number}",
            lambda: bool(self.connection.request("POST", path, {"labels": [name]})) or True,
            lambda: name in self.labels(number) or None,
        )

    def labelled_by(self, number: int, name: str) -> str:
        """The account that put a label on last; empty if that is not known."""
        done = self.events(number, "labeled")
        put_on = [event for event in done if (event.get("label") or {}).get("name") == name]
        return str((put_on[-1].get("actor") or {}).get("login") or "") if put_on else ""

    def events(self, number: int, kind: str) -> list[Mapping[str, Any]]:
        """What was done to it, of one kind (`closed`, `labeled`), oldest first. Empty where the API does not tell."""
        path = f"{self._issue(number)}/events"
        found = self.connection.find(f"reading the events of #{number}", lambda: list(self._pages(path))) or []
        return [event for event in found if event.get("event") == kind]

    def take_label(self, number: int, name: str) -> None:
        """Take a label off; one that is not there stays off."""
        if name not in self.labels(number):
            return
        path = f"{self._issue(number)}/labels/{quote(name, safe='')}"

        def take() -> bool:
            self.connection.request("DELETE", path)
            return True

        self.connection.write(
            f"taking the label {name} off #{number}",
            take,
            lambda: None if name in self.labels(number) else True,
            taken={404},
        )

    # Helpers

    @property
    def _root(self) -> str:
        return f"/repos/{self.connection.address.slug}"

    def _issue(self, number: int) -> str:
        return f"{self._root}/issues/{number}"

    def _ours(self, number: int, key: str, body: str | None = None) -> Remark | None:
        ours = (remark for remark in self.remarks(number) if remark.key == key)
        return next((remark for remark in ours if body is None or same_text(remark.text, body)), None)

    def _sent(self, verb: str, path: str, body: str) -> Remark:
        return _remark(self.connection.request(verb, path, {"body": body}), self.connection.own_login)

    def _pages(self, path: str) -> Iterator[Mapping[str, Any]]:
        page = 1
        while True:
            found = self.connection.request("GET", f"{path}?per_page=100&page={page}")
            yield from found
            if len(found) < 100:
                return
            page += 1


def _with_key(text: str, key: str) -> str:
    """`text` with the hidden key last. Whatever looks like one in `text` is made visible."""
    tail = f"\n\n{_OPEN}{key} -->\n"
    text = text.replace(_OPEN, "&lt;!-- metainfer-comment:").rstrip()
    room = MAX_COMMENT_CHARACTERS - len(tail)
    return (text if len(text) <= room else text[: room - 2] + "\n…") + tail


def _remark(data: Mapping[str, Any], own_login: str) -> Remark:
    user, text = data.get("user") or {}, str(data.get("body") or "")
    login = str(user.get("login") or "ghost")
    key = _KEY.search(text)
    ours = key is not None and login.casefold() == own_login.casefold()
    return Remark(int(data["id"]), login, str(data.get("created_at") or ""), text, key.group(1) if ours and key else "")


def same_text(one: str, other: str) -> bool:
    """Whether two texts are one to GitHub, which may store line breaks as CR LF."""
    return one.replace("\r\n", "\n").rstrip() == other.replace("\r\n", "\n").rstrip()
