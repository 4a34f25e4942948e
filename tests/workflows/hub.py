"""A repository on the strict stub of GitHub, with its Actions: events start the real workflows, in act.

What GitHub does around a run is done here: which files an event starts, one token for each job with the rights that
the job names and no more, the commit that a pull request would be merged as, and the list of runs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.github.bare import Who
from tests.github.stub import Repo, Stub
from tests.workflows.acting import Outcome, Runner
from tests.workflows.rights import rights_of_jobs, started_by

NOBODYS = "ghs_act_has_one_token_for_all_jobs"
"""What act hands to every job; the stub does not know it."""
_OWN_TOKEN = """
if [ -n "$GITHUB_TOKEN" ]; then # GitHub gives each job a token of its own, with the rights that the job names
  GITHUB_TOKEN=$(cat "$TEST_RIGHTS/$GITHUB_JOB") || exit 97
  export GITHUB_TOKEN
fi"""


@dataclass
class Delivery:
    """An event, and the workflow files that it starts. Each can be run, again as well: GitHub may deliver twice."""

    hub: Hub
    event: str
    payload: dict[str, Any]
    sha: str
    workflows: list[str]
    branch: str | None = "main"

    def run(self, workflow: str, job: str = "") -> Outcome:
        """Run one of the started files, or one job of it; how it ended goes into the list of runs."""
        assert workflow in self.workflows, f"{self.event} starts {self.workflows}, not {workflow}"
        return self.hub.run(workflow, self, job)


@dataclass
class Hub:
    """The repository `slug`. Its people are those with a role in it; `folder` is the runner's place."""

    stub: Stub
    repo: Repo
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of every step, beside what Actions sets."""
    before_tool: str = ""
    """Shell that the runner's `metainfer` begins with, after it took the job's token."""

    # People and programs that call the API

    def as_(self, login: str, verb: str, path: str, body: Any = None, status: int | None = None) -> Any:
        """A call in somebody's name; `path` below the repository's. Gives the JSON of a success, or of `status`."""
        got = self.call(self.stub.token(login), verb, path, json=body)
        assert got.is_success if status is None else got.status_code == status, f"{verb} {path}: {got.text}"
        return got.json() if got.content else None

    def call(self, token: str, verb: str, path: str, *, accept: str = "", json: Any = None) -> httpx.Response:
        """The answer to a call with a token, whatever it is. `path` is below the repository's, or a URL."""
        url = path if "://" in path else f"{self.stub.api_url}/repos/{self.repo.full_name}{path}"
        headers = {"Authorization": f"Bearer {token}", **({"Accept": accept} if accept else {})}
        return httpx.request(verb, url, headers=headers, json=json)

    def push(self, login: str, branch: str, files: Mapping[str, bytes | None], message: str = "Work\n") -> str:
        """A commit of somebody's on a branch, made from main if it is new."""
        who = Who(login.title(), f"{login}@example.org")
        return self.repo.bare.commit(branch, files, message, who, start=self.tip())

    def tip(self, branch: str = "main") -> str:
        sha = self.repo.bare.tip(f"refs/heads/{branch}")
        assert sha is not None, branch
        return sha

    def folder_of_model(self, command: str) -> Path:
        """Type a command that makes a model, in a checkout of main with metainfer at hand; the folder that it names."""
        checkout = self.folder / "by-hand"
        subprocess.run(["git", "clone", "--quiet", str(self.repo.bare.path), str(checkout)], check=True)
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "METAINFER_CACHE": str(self.folder / "cache"),
        }
        said = subprocess.check_output(["sh", "-c", command], cwd=checkout, env=environment, text=True)
        return Path(said.splitlines()[-1])

    def comments(self, number: int) -> list[str]:
        return [said["body"] for said in self.as_("olive", "GET", f"/issues/{number}/comments")]

    # Events

    def pushed(self, before: str, after: str) -> Delivery:
        """Of a push to main."""
        paths = self.repo.bare.git("diff", "--name-only", "--no-renames", before, after).splitlines()
        payload = {"ref": "refs/heads/main", "before": before, "after": after}
        return self._delivery("push", payload, after, started_by("push", branch="main", paths=paths))

    def merged(self, number: int, login: str) -> Delivery:
        """Merge a pull request by the API; the push that comes of it."""
        before = self.tip()
        head = self.as_(login, "GET", f"/pulls/{number}")["head"]["sha"]
        after = self.as_(login, "PUT", f"/pulls/{number}/merge", {"sha": head})["sha"]
        return self.pushed(before, after)

    def pull_request(self, number: int, action: str) -> Delivery:
        """Of a pull request that was opened or got a commit."""
        return self._on_pull("pull_request", number, action, {})

    def labelled(self, number: int, login: str, name: str) -> Delivery:
        """Somebody puts a label on a pull request; the event of that."""
        self.as_(login, "POST", f"/issues/{number}/labels", {"labels": [name]})
        return self._on_pull("pull_request", number, "labeled", {"label": {"name": name}})

    def approved(self, number: int, login: str) -> Delivery:
        """Somebody approves the present head; the event of that review."""
        review = self.as_(login, "POST", f"/pulls/{number}/reviews", {"event": "APPROVE"})
        return self._on_pull("pull_request_review", number, "submitted", {"review": review})

    def commented(self, number: int, login: str, text: str) -> Delivery:
        """Somebody comments; the event of that."""
        said = self.as_(login, "POST", f"/issues/{number}/comments", {"body": text})
        issue = self.as_("olive", "GET", f"/issues/{number}")
        payload = {"action": "created", "issue": issue, "comment": said}
        return self._delivery("issue_comment", payload, self.tip(), started_by("issue_comment", action="created"))

    def scheduled(self) -> Delivery:
        """The hour strikes, for every file with a schedule."""
        return self._delivery("schedule", {"schedule": "* * * * *"}, self.tip(), started_by("schedule"))

    def dispatched(self) -> list[Delivery]:
        """The runs that were asked for by the API since the last call."""
        asked, self.repo.dispatches[:] = list(self.repo.dispatches), []
        return [
            self._delivery(
                "workflow_dispatch",
                {"inputs": one["inputs"], "ref": f"refs/heads/{one['ref']}"},
                self.tip(one["ref"]),
                [Path(one["workflow"]).name],
            )
            for one in asked
        ]

    def _on_pull(self, event: str, number: int, action: str, more: Mapping[str, Any]) -> Delivery:
        pull = self.as_("olive", "GET", f"/pulls/{number}")
        base, head = pull["base"], pull["head"]
        paths = [file["filename"] for file in self.as_("olive", "GET", f"/pulls/{number}/files?per_page=100")]
        # `number` is not in the payload of a review, but act looks for it there.
        payload = {"action": action, "number": number, "pull_request": pull, **more}
        workflows = started_by(event, action=action, branch=base["ref"], paths=paths)
        return self._delivery(event, payload, self._merge_commit(number, base["sha"], head["sha"]), workflows, None)

    def _merge_commit(self, number: int, base: str, head: str) -> str:
        """The commit that a workflow of a pull request runs on: both sides merged, on no branch."""
        tree = self.repo.bare.merged_tree(base, head)
        assert tree is not None, f"#{number} cannot be merged"
        who = Who("GitHub", "noreply@example.org")
        sha = self.repo.bare.commit_tree(tree, [base, head], f"Merge {head} into {base}\n", who)
        self.repo.bare.set_ref(f"refs/pull/{number}/merge", sha)
        return sha

    def _delivery(
        self, event: str, payload: dict[str, Any], sha: str, workflows: Sequence[str], branch: str | None = "main"
    ) -> Delivery:
        payload["repository"] = self.as_("olive", "GET", "")
        return Delivery(self, event, payload, sha, list(workflows), branch)

    # Runs

    def run(self, workflow: str, delivery: Delivery, job: str = "") -> Outcome:
        """Run a workflow in act as GitHub would for this event."""
        record = self.repo.start_run(self.stub.world, workflow, delivery.event, delivery.sha, delivery.branch)
        tokens = self._tokens(workflow)
        environment = {
            "GITHUB_API_URL": self.stub.api_url,
            "GITHUB_SERVER_URL": self.stub.url,
            "GITHUB_REPOSITORY": self.repo.full_name,
            "TEST_ORIGIN": f"{self.stub.url}/{self.repo.full_name}.git",
            "TEST_RIGHTS": str(self.folder / "rights"),
            **self.environment,
        }
        runner = Runner(self.folder, self.repo.bare.path, {}, environment, _OWN_TOKEN + self.before_tool)
        secrets = [f"GITHUB_TOKEN={NOBODYS}"]
        outcome = runner.run(workflow, delivery.event, delivery.payload, secrets=secrets, sha=delivery.sha, job=job)
        for token in tokens:  # a token ends with its job
            del self.stub.world.tokens[token]
        record.end("success" if outcome.code == 0 else "failure")
        return outcome

    def _tokens(self, workflow: str) -> list[str]:
        """A token for each job, in a file named as the job is."""
        folder = self.folder / "rights"
        folder.mkdir(parents=True, exist_ok=True)
        tokens = []
        for job, rights in rights_of_jobs(workflow).items():
            tokens.append(self.stub.actions_token(self.repo.full_name, **rights))
            (folder / job).write_text(tokens[-1])
        return tokens
