"""Secrets where none may be: in the environment of a job that runs generated code, and in what is to be published."""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from metainfer.errors import RefusedError

_NAMES = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|PRIVATE_?KEY|ACCESS_?KEY|PAT|KEY)"
    r"(?:_|$)|APP_KEY|SSH_AUTH_SOCK|PGPASSWORD|NETRC",
    re.IGNORECASE,
)
_TOKENS: Mapping[str, str] = {
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,})\b",
    "a GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "a key of an AI service": r"\bsk-(?:ant-|proj-|or-)?[A-Za-z0-9_-]{24,}",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}\b",
    "an AWS key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a Google key": r"\bAIza[A-Za-z0-9_-]{35}",
    "a Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "an npm token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "a PyPI token": r"\bpypi-[A-Za-z0-9_-]{50,}",
    "a JSON web token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "a password in an address": r"\b[a-z][a-z0-9+.-]*://[^\s/:@'\"{}]{1,64}:[^\s/@'\"{}]{4,}@",
}
_SHAPES = {what: re.compile(pattern) for what, pattern in _TOKENS.items()}
_ASSIGNED = re.compile(
    r"(?i)\b[a-z0-9_.-]*(?:secret|password|passwd|passphrase|api_?key|access_?key|private_?key|auth_?token|credential"
    r"|bearer|token)s?[\"']?\s*[:=]\s*[\"']([A-Za-z0-9+/_=.-]{20,200})[\"']"
)
_BITS = 3.6
"""Per character: words and file names have less, random base 64 has 4.5 at 32 characters and more beyond."""
_SHORTEST = 8
"""A value of the environment with fewer characters is found in any text."""


class SecretInReachError(RefusedError):
    """A secret is in the environment of a job that is about to run generated code."""


def require_no_secrets(environment: Mapping[str, str]) -> None:
    """Refuse to go on where a variable looks like a secret, by its name or its value. Raises SecretInReachError."""
    found = sorted(
        name
        for name, value in environment.items()
        if value and (_NAMES.search(name) or any(shape.search(value) for shape in _SHAPES.values()))
    )
    if found:
        raise SecretInReachError(
            f"{', '.join(found)}: set, and generated code is about to run here. The sandbox hides it from that, but "
            "what is not there cannot leak: give this job no secret, or start it with `env -u NAME`"
        )


def own_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The secrets that this job holds, by variable."""
    return {name: value for name, value in environment.items() if len(value) >= _SHORTEST and _NAMES.search(name)}


def secret_complaints(files: Mapping[str, bytes], own: Mapping[str, str]) -> list[str]:
    """Where something looks like a secret, or is one of `own` (as it is or in base 64). Never says what it reads."""
    encoded = {name: _spellings(value) for name, value in own.items()}
    complaints = []
    for path, data in sorted(files.items()):
        shown = ascii(path)[1:-1][:200]
        complaints += [f"{shown}: holds the value of {name}" for name, all_ in encoded.items() if _holds(data, all_)]
        text = data.decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), start=1):
            complaints += [f"{shown}:{number}: looks like {what}" for what in _in_line(line)]
    return complaints


def _in_line(line: str) -> Iterable[str]:
    yield from (what for what, shape in _SHAPES.items() if shape.search(line))
    if any(_entropy(match[1]) > _BITS and _mixed(match[1]) for match in _ASSIGNED.finditer(line)):
        yield "a secret in an assignment"


def _entropy(text: str) -> float:
    """Bits per character, as often as each occurs here."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def _mixed(text: str) -> bool:
    """Whether letters and digits are mixed: names and paths seldom do."""
    return bool(re.search(r"[0-9]", text) and re.search(r"[A-Za-z]", text))


def _spellings(value: str) -> list[bytes]:
    """The value as it is, and in base 64 at each of the three offsets in a longer text."""
    raw = value.encode()
    found = [raw]
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + raw).decode()
        # Characters at both ends depend on the neighbours; those between do not.
        found.append(whole[math.ceil(before * 8 / 6) : len(whole) - 4].encode())
    return [spelling for spelling in found if len(spelling) >= _SHORTEST]


def _holds(data: bytes, spellings: Iterable[bytes]) -> bool:
    return any(spelling in data for spelling in spellings)
