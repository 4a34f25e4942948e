"""Git over HTTP on loopback, as GitHub speaks it: `git http-backend`, a token as password, any number of repositories.

The same `git http-backend` runs behind two servers: a small one of our own, which needs nothing but Git and can break
a connection where a test wants it, and lighttpd, which is nobody's stand-in.
"""

from __future__ import annotations

import base64
import binascii
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from tests.github.bare import Bare, git_environment
from tests.github.serving import HOST, Receive, Scope, Send, answer, header, read_body, served

USER = "x-access-token"
Admit = Callable[[str | None, str, bool], int]
"""(token or None, "owner/name", whether it is a push) → 200, 401 (who are you?), 403 (you may not), 404."""


@dataclass(frozen=True, slots=True)
class GitHost:
    """A running server. Repositories lie at `root/owner/name.git`, and `token` may read and write all of them."""

    url: str
    root: Path
    token: str

    def create(self, slug: str, files: Mapping[str, bytes] | None = None) -> Bare:
        """A new repository `owner/name`, with one commit of `files` on main."""
        return Bare.create(self.root / f"{slug}.git", files)

    def address(self, slug: str) -> str:
        """What Git clones from; holds no credentials."""
        return f"{self.url}/{slug}.git"


class GitApp:
    """The ASGI application in front of `git http-backend`. `pushed` hears of each push that was taken."""

    def __init__(self, root: Path, admit: Admit, pushed: Callable[[str, str | None], None] | None = None) -> None:
        self.root = root
        self.admit = admit
        self.pushed = pushed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        slug = repository_of(scope["path"])
        token = password(header(scope, "authorization"))
        writes = "git-receive-pack" in scope["path"] or b"git-receive-pack" in scope["query_string"]
        status = await run_in_threadpool(self.admit, token, slug, writes) if slug else 404
        if status != 200:
            challenge = [(b"www-authenticate", b'Basic realm="GitHub"')] if status == 401 else []
            await answer(send, status, challenge, b"")
            return
        environment = self._cgi(scope, body, token)
        done = await run_in_threadpool(
            subprocess.run, ["git", "http-backend"], input=body, capture_output=True, env=environment, check=False
        )
        status, headers, content = parse_cgi(done.stdout)
        if self.pushed and scope["path"].endswith("/git-receive-pack") and status == 200:
            await run_in_threadpool(self.pushed, slug, token)
        await answer(send, status, headers, content)

    def _cgi(self, scope: Scope, body: bytes, token: str | None) -> dict[str, str]:
        return git_environment(
            {
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": header(scope, "git-protocol"),
                "REQUEST_METHOD": scope["method"],
                "PATH_INFO": scope["path"],
                "QUERY_STRING": scope["query_string"].decode("latin-1"),
                "CONTENT_TYPE": header(scope, "content-type"),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": header(scope, "content-encoding"),
                "REMOTE_ADDR": "127.0.0.1",
                **({"REMOTE_USER": USER} if token else {}),
            }
        )


def repository_of(path: str) -> str:
    """`owner/name` of a Git request's path; empty if it is none."""
    parts = path.split("/")
    if len(parts) < 4 or not parts[2].endswith(".git") or ".." in parts:
        return ""
    return f"{parts[1]}/{parts[2].removesuffix('.git')}"


def password(authorization: str) -> str | None:
    """The password of basic credentials; GitHub does not care for the user name."""
    kind, _, value = authorization.partition(" ")
    if kind.casefold() != "basic":
        return None
    try:
        return base64.b64decode(value).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None


def parse_cgi(out: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and content of what a CGI program wrote; 500 if it wrote nothing."""
    head, found, content = out.partition(b"\r\n\r\n")
    if not found:
        return 500, [], b"git http-backend gave no answer"
    pairs = [
        (name.strip().lower(), value.strip()) for name, _, value in (x.partition(b":") for x in head.split(b"\r\n"))
    ]
    status = next((int(value.split()[0]) for name, value in pairs if name == b"status"), 200)
    return status, [(name, value) for name, value in pairs if name != b"status"], content


@contextmanager
def python_git_host(root: Path, token: str) -> Iterator[GitHost]:
    """Our own server: every repository asks for the token."""
    app = GitApp(root, lambda given, slug, writes: 200 if given == token else 401)
    with served(app) as url:
        yield GitHost(url, root, token)


def find_lighttpd() -> str | None:
    """Debian puts it where ordinary users do not look."""
    return shutil.which("lighttpd") or shutil.which("lighttpd", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def lighttpd_git_host(root: Path, token: str, folder: Path) -> Iterator[GitHost]:
    """lighttpd in front of `git http-backend`; its configuration and log lie in `folder`."""
    program = find_lighttpd()
    assert program, "lighttpd is not installed"
    backend = Path(subprocess.check_output(["git", "--exec-path"], text=True).strip()) / "git-http-backend"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    root.mkdir(parents=True, exist_ok=True)
    (folder / "users").write_text(f"{USER}:{token}\n")
    (folder / "lighttpd.conf").write_text(
        f"""
server.modules = ("mod_auth", "mod_authn_file", "mod_alias", "mod_setenv", "mod_cgi")
server.document-root = "{root}"
server.bind = "127.0.0.1"
server.port = {port}
server.errorlog = "{folder}/error.log"
auth.backend = "plain"
auth.backend.plain.userfile = "{folder}/users"
auth.require = ("/" => ("method" => "basic", "realm" => "GitHub", "require" => "valid-user"))
alias.url = ("/" => "{backend}/")
cgi.assign = ("" => "")
setenv.set-environment = ("GIT_PROJECT_ROOT" => "{root}", "GIT_HTTP_EXPORT_ALL" => "1", "GIT_CONFIG_NOSYSTEM" => "1")
"""
    )
    process = subprocess.Popen([program, "-D", "-f", str(folder / "lighttpd.conf")], env=git_environment())
    try:
        _wait_for(port, process)
        yield GitHost(f"http://{HOST}:{port}", root, token)
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(400):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.025)
    raise RuntimeError("the server does not answer")
