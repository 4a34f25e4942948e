"""The Hugging Face hub, played by a local server: what is asked of it, and what its refusals become."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from metainfer.files import folder_digest

REVISION = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "owner/tiny"


class Hub(ThreadingHTTPServer):
    """Serves one folder as one commit of one repository."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.downloads: list[tuple[str, str | None]] = []
        """(file, Range header) of every download."""
        self.break_after: int | None = None
        """Close the connection after so many bytes of a weights file, once."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{REPOSITORY}/revision/{REVISION}"):
            files = [{"rfilename": path.name} for path in sorted(self.server.folder.iterdir())]
            self._send(json.dumps({"id": REPOSITORY, "sha": REVISION, "siblings": files}).encode(), body)
        elif path.startswith(f"/api/models/{REPOSITORY}/tree/{REVISION}"):
            files = [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": "0" * 40}
                for path in sorted(self.server.folder.iterdir())
            ]
            self._send(json.dumps(files).encode(), body)
        elif path.startswith(f"/{REPOSITORY}/resolve/{REVISION}/"):
            self._file(path.rpartition("/")[2], body)
        else:
            code = "RevisionNotFound" if REPOSITORY in path else "RepoNotFound"
            self._send(b"{}", body, 404, {"X-Error-Code": code})

    def _file(self, name: str, body: bool) -> None:
        data = (self.server.folder / name).read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": REVISION, "Accept-Ranges": "bytes"}
        status, wanted = 200, self.headers.get("Range")
        if body:
            self.server.downloads.append((name, wanted))
        if wanted and wanted.startswith("bytes=") and wanted != "bytes=0-":
            first = int(wanted.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
            status, data = 206, data[first:]
        if body and self.server.break_after is not None and name.endswith(".safetensors"):
            data_sent, self.server.break_after = data[: self.server.break_after], None
            self._send(data_sent, body, status, headers, length=len(data))
            self.close_connection = True
            return
        self._send(data, body, status, headers)

    def _send(
        self,
        data: bytes,
        body: bool,
        status: int = 200,
        headers: dict[str, str] | None = None,
        length: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub(random_qwen2: Path, tmp_path: Path) -> Iterator[Hub]:
    import shutil

    folder = Path(shutil.copytree(random_qwen2, tmp_path / "remote"))
    (folder / "pytorch_model.bin").write_bytes(b"weights again")
    (folder / "consolidated.safetensors").write_bytes(b"weights once more")
    server = Hub(folder)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(tmp_path: Path, repository: str = REPOSITORY, revision: str = REVISION, **environment: str) -> list[str]:
    """Fetch in a process of its own, since the hub's address is read at import. Lines: digest, or error and class."""
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from metainfer.checkpoint.sources import fetch_model
        from metainfer.errors import MetainferError
        from metainfer.progress import Silent
        from metainfer.spec.models import Source

        here = Path({str(tmp_path)!r})
        source = Source.model_validate({{"hf": {{"id": {repository!r}, "revision": {revision!r}}}}})
        try:
            print(fetch_model(source, cache=here / "cache", base_dir=here, progress=Silent()).digest)
        except MetainferError as error:
            print(type(error).__name__)
            print(error)
        """
    )
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()
    }
    environment = {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "hf"),
    } | environment
    result = subprocess.run(
        [sys.executable, "-c", script], env=clean | environment, capture_output=True, text=True, timeout=120, check=True
    )
    return result.stdout.splitlines()


def test_a_repository_becomes_the_folder_that_it_is_and_nothing_else_is_downloaded(
    hub: Hub, random_qwen2: Path, tmp_path: Path
) -> None:
    assert fetch(tmp_path, HF_ENDPOINT=hub.url) == [folder_digest(random_qwen2)]
    assert {name for name, _ in hub.downloads} == {path.name for path in random_qwen2.iterdir()}
    # Found again without a word to the hub.
    assert fetch(tmp_path, HF_ENDPOINT="http://127.0.0.1:9") == [folder_digest(random_qwen2)]


def test_a_repository_or_commit_that_does_not_exist_is_the_specs_fault(hub: Hub, tmp_path: Path) -> None:
    kind, message = fetch(tmp_path, revision="f" * 40, HF_ENDPOINT=hub.url)
    assert kind == "InputError"
    assert message.startswith(f"{REPOSITORY} at ffffffffffff: the hub knows no such repository or commit")


@pytest.mark.parametrize("repository", ["owner/a--b", "-owner/tiny", "owner/tiny.git", "owner/" + "a" * 97])
def test_an_id_that_no_repository_can_have_is_the_specs_fault(repository: str, hub: Hub, tmp_path: Path) -> None:
    kind, message = fetch(tmp_path, repository, HF_ENDPOINT=hub.url)
    assert kind == "InputError"
    assert message.startswith(f"{repository}: no repository of the hub can have this id: ")


@pytest.mark.parametrize(
    "environment",
    [
        {"HF_HUB_OFFLINE": "1"},
        # The client tries for half a minute before it believes this.
        pytest.param({"HF_ENDPOINT": "http://127.0.0.1:9"}, marks=pytest.mark.slow),
    ],
    ids=["offline", "unreachable"],
)
def test_without_a_network_the_error_says_so_and_what_to_do(environment: dict[str, str], tmp_path: Path) -> None:
    kind, message, advice = fetch(tmp_path, **environment)
    assert kind == "MachineError"
    assert message.startswith(f"{REPOSITORY} at 0123456789ab: cannot be downloaded: ")
    assert "run the same command again" in advice


def test_a_download_that_breaks_off_is_completed(hub: Hub, random_qwen2: Path, tmp_path: Path) -> None:
    hub.break_after = 50_000
    lines = fetch(tmp_path, HF_ENDPOINT=hub.url)
    if lines[0] == "MachineError":  # whether the client tries again by itself depends on its release
        lines = fetch(tmp_path, HF_ENDPOINT=hub.url)
    assert lines == [folder_digest(random_qwen2)]
    assert [name for name, _ in hub.downloads].count("model.safetensors") == 2
