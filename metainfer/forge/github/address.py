"""Which repository on which GitHub, and where its API and its Git server are."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from metainfer.errors import InputError

API_VARIABLES = ("METAINFER_GITHUB_API", "GITHUB_API_URL")
SERVER_VARIABLES = ("METAINFER_GITHUB_SERVER", "GITHUB_SERVER_URL")
PUBLIC_API = "https://api.github.com"
PUBLIC_SERVER = "https://github.com"
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,100}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class GitHubAddress:
    """A repository. `api` is the base URL of the REST API, `server` that of website and Git; none ends with a slash."""

    owner: str
    name: str
    api: str = PUBLIC_API
    server: str = PUBLIC_SERVER

    @property
    def slug(self) -> str:
        """`owner/name`, as the API knows it."""
        return f"{self.owner}/{self.name}"

    @property
    def git_url(self) -> str:
        """What Git fetches from and pushes to. Holds no credentials."""
        return f"{self.server}/{self.slug}.git"

    @property
    def folder(self) -> str:
        """A relative path for data about this repository, apart from those of other servers."""
        host = re.sub(r"[^A-Za-z0-9.-]", "_", urlsplit(self.server).netloc)
        return f"{host}/{self.owner}/{self.name}"

    @property
    def is_local(self) -> bool:
        """Whether the API is on this machine, where nobody counts requests."""
        return urlsplit(self.api).hostname in _LOOPBACK


def is_github_address(value: str) -> bool:
    """Whether a forge's address is for this package: `github:owner/name`, or a URL."""
    return value.startswith("github:") or "://" in value


def parse_address(value: str, environment: Mapping[str, str] | None = None) -> GitHubAddress:
    """Read `github:owner/name`, `github:` alone (inside Actions), or `https://HOST/owner/name`.

    With `github:`, the variables in API_VARIABLES and SERVER_VARIABLES say which GitHub is meant (Actions sets the
    second of each), else it is github.com. A URL names its server itself; its API is at `/api/v3`, as on GitHub
    Enterprise Server, unless a variable of ours says otherwise. Raises InputError for anything else, plain HTTP to
    another machine among it: the token would travel in clear text.
    """
    environment = os.environ if environment is None else environment
    if value.startswith("github:"):
        slug = value.removeprefix("github:") or environment.get("GITHUB_REPOSITORY", "")
        api = _first(environment, API_VARIABLES) or PUBLIC_API
        server = _first(environment, SERVER_VARIABLES) or PUBLIC_SERVER
    else:
        parts = urlsplit(value)
        if parts.username or parts.password:
            raise InputError(
                f"the forge's URL (host {parts.hostname}) holds credentials; put the token in the environment"
            )
        slug = parts.path.strip("/").removesuffix(".git")
        server = f"{parts.scheme}://{parts.netloc}"
        own_api = PUBLIC_API if server == PUBLIC_SERVER else f"{server}/api/v3"
        api = _first(environment, API_VARIABLES[:1]) or own_api
    owner, slash, name = slug.partition("/")
    if not slash or not _NAME.fullmatch(owner) or not _NAME.fullmatch(name):
        raise InputError(f"{value!a} names no GitHub repository; write github:OWNER/NAME or https://HOST/OWNER/NAME")
    return GitHubAddress(owner, name, _checked(api), _checked(server))


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise InputError(f"{url!a} is no base URL of a GitHub server; write it like {PUBLIC_SERVER}")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise InputError(f"{url}: a token is only sent over https, or over http to this machine")
    return url.rstrip("/")
