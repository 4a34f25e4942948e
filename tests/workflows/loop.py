"""The repository of the whole loop: its people, its knowledge and its spec, and what the tests ask about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.ci.repositories import ROOT
from tests.ckb.lesson import lesson
from tests.github.stub import Stub
from tests.workflows.hub import Delivery, Hub
from tests.workflows.rights import OURS, WORKFLOWS

ENGINE = "tiny-qwen3"
SPEC = f"specs/{ENGINE}.yaml"
BRANCH = f"metainfer/{ENGINE}"
PROPOSE = """
if [ "$1 $2" = "ci generate" ]; then set -- "$@" --propose "$TEST_PROPOSAL"; fi"""
"""The specializer finds nothing to know; a run with a model may, and hands it on like this."""
PROTECTION = {
    "required_status_checks": {"strict": False, "contexts": ["ckb-review"]},
    "enforce_admins": True,
    "required_pull_request_reviews": {
        "required_approving_review_count": 1,
        "dismiss_stale_reviews": True,
        "require_code_owner_reviews": True,
    },
    "restrictions": None,
}


def make_hub(stub: Stub, folder: Path) -> Hub:
    """A private repository with knowledge and workflows, its main protected as docs/review.md says, and no spec yet."""
    paths = [*(ROOT / "ckb").rglob("*"), *(path for path in WORKFLOWS.glob("*.yml") if path.name != OURS)]
    known = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    content = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in known}
    content |= {".github/CODEOWNERS": b"* @olive\n/ckb/ @kim\n", ".gitignore": b".metainfer/\n"}
    repo = stub.repo("octo/engines", content, private=True, olive="admin", kim="write", sam="write", rita="read")
    proposal = folder / "proposal.json"
    proposal.write_text(json.dumps(lesson(ROOT / "ckb", "a run")))
    made = Hub(stub, repo, folder, {"TEST_PROPOSAL": str(proposal)}, PROPOSE)
    made.as_("olive", "PUT", "/branches/main/protection", PROTECTION)
    return made


def spec(**changes: int) -> bytes:
    """The tiny spec with other limits."""
    text = (ROOT / SPEC).read_text()
    for name, value in changes.items():
        old = next(line for line in text.splitlines() if line.strip().startswith(f"{name}:"))
        text = text.replace(old, f"{old.partition(':')[0]}: {value}")
    return text.encode()


def propose(hub: Hub, branch: str, content: bytes) -> int:
    """Sam opens a pull request for the spec."""
    hub.push("sam", branch, {SPEC: content})
    body = {"title": f"{ENGINE}: {branch}", "head": branch, "base": "main", "body": ""}
    return int(hub.as_("sam", "POST", "/pulls", body)["number"])


def merge_spec(hub: Hub, number: int, action: str = "opened") -> Delivery:
    """What protection asks for, then the merge: the check on this head, and its owner's approval."""
    judged = hub.pull_request(number, action).run("ckb-review.yml")
    assert judged.code == 0, judged.text[-4000:]
    hub.as_("olive", "POST", f"/pulls/{number}/reviews", {"event": "APPROVE"})
    return hub.merged(number, "sam")


# Looking


def the_pull(hub: Hub) -> Any:
    """The engine's one pull request, whatever became of it; there must not be another."""
    [pull] = hub.as_("sam", "GET", f"/pulls?state=all&head=octo:{BRANCH}")
    return hub.as_("sam", "GET", f"/pulls/{pull['number']}")


def changed(hub: Hub, commit: str) -> list[str]:
    return hub.repo.bare.git("diff-tree", "-r", "--no-commit-id", "--name-only", commit).splitlines()


def refs(hub: Hub) -> str:
    return hub.repo.bare.git("for-each-ref")


def check(hub: Hub, commit: str) -> tuple[str, str]:
    """State and words of ckb-review at a commit."""
    [status] = hub.as_("sam", "GET", f"/commits/{commit}/status")["statuses"]
    assert status["context"] == "ckb-review"
    return status["state"], status["description"]
