"""Who is at the keyboard, as far as Git's configuration or the command line says."""

from __future__ import annotations

import re
from pathlib import Path

from metainfer.errors import InputError
from metainfer.forge.plumbing import run_git
from metainfer.forge.protocol import Identity

_UNSAFE = re.compile(r"[<>\n\r\0]")
_DROPPED_BY_GIT = "".join(map(chr, range(33))) + ".,:;<>\"\\'"
"""What Git takes off both ends of a name."""


def identify(repo_root: Path, given: str | None = None) -> Identity:
    """The person who acts. `given` (from `--as`) is an e-mail address, a `Name <address>`, or an @handle.

    Without it, `user.name` and `user.email` of Git's configuration. Raises InputError if neither says who it is.
    """
    name = git_config(repo_root, "user.name")
    email = git_config(repo_root, "user.email")
    if given is None:
        if not email:
            raise InputError(
                "Git does not know who you are: set `git config user.name NAME` and `git config user.email EMAIL`, "
                "or say it with --as 'NAME <EMAIL>'"
            )
        return _checked(Identity(name or email, email))
    if given.startswith("@"):
        return _checked(Identity(name or given, email or "nobody@localhost", given))
    full = re.fullmatch(r"\s*(.*?)\s*<([^<>]+)>\s*", given)
    named, address = (full.group(1), full.group(2)) if full else ("", given.strip())
    if not re.fullmatch(r"[^@\s]+@[^@\s]+", address):
        raise InputError(f"--as {given!a}: give an e-mail address, 'Name <address>', or an @handle")
    return _checked(Identity(named or (name if address == email and name else address), address))


def git_config(repo_root: Path, key: str) -> str | None:
    """A value of Git's configuration as seen from `repo_root`; None if it is not set."""
    done = run_git(["-C", str(repo_root), "config", "--get", key])
    return done.stdout.decode("utf-8", "replace").strip() or None if done.returncode == 0 else None


def _checked(who: Identity) -> Identity:
    for value in (who.name, who.email, who.handle or ""):
        require_text(value, "a name or address")
        if _UNSAFE.search(value):
            raise InputError(f"{value!r} cannot stand in a commit: it holds <, > or a line break")
    if not who.name.strip(_DROPPED_BY_GIT):
        raise InputError(f"{who.name!r} is no name that Git keeps: give one with a letter, as in --as 'NAME <EMAIL>'")
    return who


def require_text(value: str, what: str) -> str:
    """`value`, if it can be stored as UTF-8: bytes that the terminal sent in another encoding cannot. InputError."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{what} is not text in UTF-8: {value!a}; set the terminal to UTF-8") from None
    return value
