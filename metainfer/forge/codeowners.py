"""CODEOWNERS as GitHub reads it: who must approve a change to which path. The last line that matches decides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LOCATIONS = (".github/CODEOWNERS", "CODEOWNERS", "docs/CODEOWNERS")
"""Where GitHub looks, in this order; the first file found is the only one read."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: `owners` may be empty, which takes the paths out of an earlier line's hands."""

    line: int
    pattern: str
    owners: tuple[str, ...]
    matches: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class CodeOwners:
    """The rules of one file, and the lines that were left out because they are not valid."""

    rules: tuple[Rule, ...]
    errors: tuple[str, ...] = ()

    def owners(self, path: str) -> tuple[str, ...]:
        """The owners of a file by the last rule that matches it; empty when nobody owns it."""
        for rule in reversed(self.rules):
            if rule.matches.fullmatch(path):
                return rule.owners
        return ()

    def unapproved(self, paths: Iterable[str], approvers: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Paths that no approver owns → who could approve them (nobody, when the tuple is empty)."""
        given = {name.casefold() for name in approvers}
        missing = {}
        for path in paths:
            owners = self.owners(path)
            if not given.intersection(owner.casefold() for owner in owners):
                missing[path] = owners
        return missing


def parse_codeowners(text: str) -> CodeOwners:
    """Read a CODEOWNERS file. Lines that GitHub would skip are skipped, and named in `errors`."""
    rules, errors = [], []
    # GitHub's lines end with a line feed alone: what follows another separator in a comment is still that comment.
    for number, raw in enumerate(text.split("\n"), start=1):
        words = _words(raw)
        if not words:
            continue
        pattern, owners = words[0], tuple(words[1:])
        if problem := _problem(pattern, owners):
            errors.append(f"line {number}: {problem}")
            continue
        rules.append(Rule(number, pattern, owners, _compile(pattern)))
    return CodeOwners(tuple(rules), tuple(errors))


def _words(line: str) -> list[str]:
    """Split at spaces; `\\ ` and `\\#` are literal; an unescaped `#` that starts a word starts a comment."""
    words: list[str] = []
    for word in re.findall(r"(?:\\.|\S)+", line):
        if word.startswith("#"):
            break
        words.append(word)
    return words


def _problem(pattern: str, owners: tuple[str, ...]) -> str | None:
    if pattern.startswith("!"):
        return f"{pattern}: exclusion is not supported in CODEOWNERS"
    if "[" in pattern or "]" in pattern:
        return f"{pattern}: character ranges are not supported in CODEOWNERS"
    if not pattern.strip("/"):
        return f"{pattern}: names no path; use * for everything"
    for owner in owners:
        if not re.fullmatch(r"@[\w.-]+(?:/[\w.-]+)?|[^@\s]+@[^@\s]+", owner):
            return f"{owner}: not an @user, an @org/team or an e-mail address"
    return None


def _compile(pattern: str) -> re.Pattern[str]:
    """The pattern as an expression over whole paths of files, e.g. `/ckb/` as `ckb/.*`."""
    folder_only = pattern.endswith("/")
    body = pattern.strip("/")
    # A slash at the start or in the middle ties a pattern to the root; otherwise it may match at any depth.
    anchored = pattern.startswith("/") or "/" in body
    pieces = ["" if anchored else "(?:.*/)?"]
    parts = body.split("/")
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            pieces.append(".*" if last else "(?:.*/)?")
        else:
            pieces.append(_part(part) + ("" if last else "/"))
    if folder_only:
        pieces.append("/.*")
    elif not _direct_children_only(parts):
        # A name without a trailing slash may be a file, or a folder with all that is below it.
        pieces.append("(?:/.*)?")
    return re.compile("".join(pieces), re.DOTALL)


def _direct_children_only(parts: list[str]) -> bool:
    """`docs/*` covers the files in docs but, unlike in .gitignore, none in its subfolders."""
    return len(parts) > 1 and parts[-1] == "*"


def _part(part: str) -> str:
    out = []
    for token in re.findall(r"\\.|\*+|\?|[^\\*?]+|\\$", part):
        if token.startswith("*"):
            out.append("[^/]*")
        elif token == "?":
            out.append("[^/]")
        else:
            out.append(re.escape(token[1:] if token.startswith("\\") and len(token) > 1 else token))
    return "".join(out)
