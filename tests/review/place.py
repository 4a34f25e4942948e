"""A repository on the strict stub, people with rights in it, and what they do by the API."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metainfer.forge.github.address import parse_address
from metainfer.forge.github.connect import Connection, connect
from metainfer.forge.github.forge import GitHubForge
from tests.github.bare import Who
from tests.github.stub import Stub
from tests.review.repository import knowledge

SOURCE = Path(__file__).parents[2]
CHECK_RIGHTS = {"contents": "read", "pull_requests": "write", "statuses": "write"}
"""What the job of the check gives its token."""


class Place:
    """`slug` is fresh for each test. alice and bob may write, carol may read."""

    def __init__(self, stub: Stub, slug: str, folder: Path, files: Mapping[str, bytes] | None = None) -> None:
        self.stub, self.slug, self.folder = stub, slug, folder
        self.repo = stub.repo(slug, files or knowledge(), alice="write", bob="write", carol="read")
        self.bot = stub.actions_token(slug, **CHECK_RIGHTS)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "METAINFER_GITHUB_API": self.stub.api_url,
            "METAINFER_GITHUB_SERVER": self.stub.url,
            "METAINFER_FORGE": f"github:{self.slug}",
        }

    def forge(self, token: str | None = None) -> GitHubForge:
        address = parse_address(f"github:{self.slug}", self.environment)
        return GitHubForge.open(address, self.folder / "mirrors", {"METAINFER_GITHUB_TOKEN": token or self.bot})

    def connection(self, login: str) -> Connection:
        address = parse_address(f"github:{self.slug}", self.environment)
        return connect(address, {"METAINFER_GITHUB_TOKEN": self.stub.token(login)})

    def as_(self, login: str, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """A call of the API in somebody's name. `path` below the repository's."""
        return self.connection(login).request(verb, f"/repos/{self.slug}{path}", body)

    def push(self, branch: str, files: Mapping[str, bytes | None], login: str = "alice") -> str:
        who = Who(login.title(), f"{login}@example.org")
        return self.repo.bare.commit(branch, files, "Work\n", who, start=self.repo.bare.tip("refs/heads/main"))

    def pull(
        self, files: Mapping[str, bytes | None], login: str = "carol", branch: str = "work", base: str = "main"
    ) -> int:
        """Push files to a branch and open a pull request for it. carol opens by the bot's favour: she may not push."""
        self.push(branch, files, login)
        body = {"title": "A change", "head": branch, "base": base, "body": "Words."}
        return int(self.as_("alice" if login == "carol" else login, "POST", "/pulls", body)["number"])

    def approve(self, number: int, login: str, head: str = "") -> int:
        body = {"event": "APPROVE", **({"commit_id": head} if head else {})}
        return int(self.as_(login, "POST", f"/pulls/{number}/reviews", body)["id"])

    def status(self, commit: str) -> tuple[str, str] | None:
        """State and words of ckb-review at a commit."""
        found = self.as_("alice", "GET", f"/commits/{commit}/status")["statuses"]
        return next(((s["state"], s["description"]) for s in found if s["context"] == "ckb-review"), None)

    def head(self, number: int) -> str:
        return str(self.as_("alice", "GET", f"/pulls/{number}")["head"]["sha"])

    def labels(self, number: int) -> set[str]:
        return {label["name"] for label in self.as_("alice", "GET", f"/issues/{number}/labels")}

    def comments(self, number: int) -> list[str]:
        return [comment["body"] for comment in self.as_("alice", "GET", f"/issues/{number}/comments")]

    def run(self, *arguments: str, token: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """`metainfer ci …` as a job runs it: in a checkout, with a token and nothing else."""
        checkout = self.folder / "checkout"
        (checkout / ".git").mkdir(parents=True, exist_ok=True)
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SOURCE),
            "HOME": str(self.folder),
            "GITHUB_TOKEN": token or self.bot,
            **self.environment,
            **environment,
        }
        command = [sys.executable, "-m", "metainfer", "ci", *arguments]
        return subprocess.run(command, cwd=checkout, capture_output=True, text=True, env=variables, check=False)
