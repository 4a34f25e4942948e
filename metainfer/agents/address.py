"""Where an endpoint is, read once: what of its address may be shown, and whether it is a machine of one's own."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from metainfer.errors import InputError

_HOST = re.compile(r"[^\x00-\x20\\/?#@<>\"^`{|}\x7f]+")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A host that is one number is an address too, of whatever machine; `ipaddress` does not read it."""


@dataclass(frozen=True)
class Address:
    """The address of an endpoint."""

    shown: str
    """Without a name and password, a query and a fragment, which may be keys: for messages and files."""
    is_own: bool
    """Whether it is this machine, or one of a private network."""
    password: str = field(default="", repr=False)
    """What of the address must not be written."""


def read_address(base_url: str) -> Address:
    """InputError, which does not show what may be a password, for what is no URL of a server."""
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or port == 0:
        shown = base_url.rpartition("@")[2][:200]
        raise InputError(f"{shown!r} is no URL of an endpoint; write http://HOST:PORT/v1")
    netloc = parts.netloc.rpartition("@")[2]
    shown = parts._replace(netloc=netloc, query="", fragment="").geturl()
    return Address(shown, _is_own(host), unquote(parts.password or ""))


def _is_own(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.rstrip(".")
        if not name.isascii() or _NUMBER.fullmatch(name):
            return False
        return name == "localhost" or "." not in name or name.endswith((".local", ".internal", ".localhost"))
    return address.is_loopback or address.is_private
